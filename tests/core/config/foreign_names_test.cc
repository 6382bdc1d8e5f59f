#include "core/config/foreign_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

enum class Shape { kRound, kSquare };
constexpr auto enum_names(Shape) {
  return name_table<Shape>({{Shape::kRound, "round"}, {Shape::kSquare, "square"}});
}

struct Limits {
  int64_t low = 1, high = 2, size = 3;
  Shape shape = Shape::kRound;
  std::string file;
  std::vector<std::pair<std::string, std::string>> columns;

  void visit(OptionVisitor& v) {
    v.field("low", low, {.help = "low", .min = 0, .max = 9});
    v.field("high", high, {.help = "high", .min = 0, .max = 9});
    v.field("size", size, {.help = "size", .min = 0, .max = 9});
    v.field("shape", shape, {.help = "shape"});
    v.field("file", file, {.help = "file", .path = true});
    v.field("columns", columns, {.help = "columns"});
  }
};
struct Root {
  Limits limits;
  void visit(OptionVisitor& v) { v.section("limits", limits, "limits"); }
};

const std::vector<ForeignName>& names() {
  static const std::vector<ForeignName> rows = {
      {.programs = "A", .name = "lowest", .key = "limits.low"},
      {.programs = "B", .name = "engine.bounds.low", .key = "limits.low"},
      {.programs = "A",
       .name = "bound",
       .key = "limits.low",
       .values = {{.theirs = "*", .also = "limits.high=*"}}},
      {.programs = "A",
       .name = "kind",
       .key = "limits.shape",
       .values = {{.theirs = "circle", .ours = "round"},
                  {.theirs = "box", .ours = "square", .also = "limits.size=7 limits.high=8"},
                  {.theirs = "any", .ours = ""},
                  {.theirs = "cone", .told = "there is no cone. Try box."}}},
      {.programs = "A", .name = "count", .told = "it counts pairs. Write limits.size."},
      {.programs = "A", .name = "gpu", .told = "there is none. Remove it."},
      {.programs = "B",
       .name = "amount",
       .key = "limits.size",
       .told = "divide it by limits.low.",
       .only_with = "limits.low=1"},
      {.programs = "B", .name = "files", .key = "limits.file", .several = "Join them."},
      {.programs = "B", .name = "data.key", .key = "limits.columns.prompt"},
      {.programs = "C",
       .name = "weight",
       .key = "limits.high",
       .told = "it wants use_weight. Write limits.high.",
       .needs = "use_weight=true",
       .neutral = "0"},
      {.programs = "C",
       .name = "use_weight",
       .key = "limits.high",
       .values = {{.theirs = "true", .ours = "", .also = "limits.high=6"},
                  {.theirs = "false", .ours = "0"}}},
      {.programs = "C", .name = "idle", .told = "there is none.", .neutral = "false 1"},
      {.programs = "C",
       .name = "both",
       .told = "write both bounds.",
       .write = "limits.low=* limits.high=limits.size*value"},
      {.programs = "C", .name = "limits.shape.kind", .key = "limits.shape"},
      {.programs = "C", .name = "limits.shape.gpu", .told = "there is none."},
      {.programs = "C", .name = "engine.empty.x", .told = "there is none."},
      {.programs = "C",
       .name = "use_size",
       .key = "limits.shape",
       .values = {{.theirs = "true",
                   .ours = "square",
                   .told = "its size is missing. Write size.",
                   .wants = "limits.size"}}},
      {.programs = "C", .name = "passes", .key = "limits.high", .note = "the last is cut"},
      {.programs = "C",
       .name = "limits",
       .told = "it is a section. Remove it.",
       .is_section = true},
  };
  return rows;
}

ConfigKeys bind(const std::string& text, Root& root, std::vector<std::string> overrides = {}) {
  return bind_config(parse_config(text, "a.yaml", overrides), root, names());
}

Root read(const std::string& text, std::vector<std::string> overrides = {}) {
  Root root;
  bind(text, root, std::move(overrides));
  return root;
}

std::string refusal_of(const std::string& text, std::vector<std::string> overrides = {}) {
  try {
    read(text, std::move(overrides));
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

std::vector<std::string> notes_of(const std::string& text) {
  Root root;
  return bind(text, root).notes();
}

using Notes = std::vector<std::string>;

TEST(ForeignNames, AreTakenAtTheTopNestedDottedAndOnTheCommandLine) {
  EXPECT_EQ(read("lowest: 5\n").limits.low, 5);
  EXPECT_EQ(read("engine: {bounds: {low: 5}}\n").limits.low, 5);
  EXPECT_EQ(read("engine.bounds.low: 5\n").limits.low, 5);
  EXPECT_EQ(read("engine: {bounds.low: 5}\n").limits.low, 5);
  EXPECT_EQ(read("", {"lowest=5"}).limits.low, 5);
  EXPECT_EQ(read("", {"engine.bounds.low=5"}).limits.low, 5);
  // Where our section is there already, empty too.
  EXPECT_EQ(read("limits: {high: 4}\nlowest: 5\n").limits.low, 5);
  EXPECT_EQ(read("limits:\nlowest: 5\n").limits.low, 5);
}

TEST(ForeignNames, AreNotedWithWhatTheyWereTakenAs) {
  EXPECT_EQ(notes_of("lowest: 5\n"), Notes{"a.yaml:1: lowest is read as limits.low"});
  EXPECT_EQ(notes_of("kind: Circle\n"),
            Notes{"a.yaml:1: kind = Circle is read as limits.shape = round"});
  EXPECT_EQ(notes_of("bound: 3\n"), (Notes{"a.yaml:1: bound is read as limits.low",
                                           "a.yaml:1: bound is read as limits.high"}));
  EXPECT_EQ(notes_of("kind: any\n"), Notes{"a.yaml:1: kind = any leaves limits.shape as it is"});
}

TEST(ForeignNames, ThatAreOverriddenSayNothingBesides) {
  // The size and the height of a box, but none of it is left where the shape is overridden.
  const Limits box = read("kind: box\n").limits;
  EXPECT_EQ(box.size, 7);
  const Limits round = read("kind: box\n", {"limits.shape=round"}).limits;
  EXPECT_EQ(round.shape, Shape::kRound);
  EXPECT_EQ(round.size, 3);
  EXPECT_EQ(round.high, 2);
  EXPECT_EQ(read("bound: 3\n", {"limits.low=4"}).limits.high, 2);
}

TEST(ForeignNames, OfAHigherLayerOverrideWhatALowerOneSaysUnderAnotherName) {
  EXPECT_EQ(read("lowest: 5\n", {"limits.low=6"}).limits.low, 6);
  EXPECT_EQ(read("limits: {low: 5}\n", {"lowest=6"}).limits.low, 6);
  EXPECT_EQ(read("lowest: 5\n", {"engine.bounds.low=6"}).limits.low, 6);
}

TEST(ForeignNames, OfOneKeyInOneLayerAreAnErrorThatNamesBoth) {
  EXPECT_EQ(refusal_of("limits: {low: 5}\nlowest: 6\n"),
            "a.yaml:2: lowest and limits.low (at a.yaml:1) are two names of limits.low. Remove one "
            "of them.");
  EXPECT_EQ(refusal_of("lowest: 5\nengine: {bounds: {low: 6}}\n"),
            "a.yaml:2: engine.bounds.low and lowest (at a.yaml:1) are two names of limits.low. "
            "Remove one of them.");
  EXPECT_EQ(refusal_of("", {"lowest=5", "limits.low=6"}),
            "override lowest=5: lowest and limits.low (at override limits.low=6) are two names of "
            "limits.low. Remove one of them.");
}

TEST(ForeignNames, HaveTheirValuesPutInOurWords) {
  EXPECT_EQ(read("kind: box\n").limits.shape, Shape::kSquare);
  EXPECT_EQ(read("kind: circle\n").limits.shape, Shape::kRound);
  EXPECT_EQ(read("limits: {shape: square}\nkind: any\n").limits.shape, Shape::kSquare);
  EXPECT_EQ(refusal_of("kind: cone\n"), "a.yaml:1: kind is cone: there is no cone. Try box.");
  EXPECT_EQ(refusal_of("kind: ball\n"),
            "a.yaml:1: kind is ball; what is taken here: circle, box, any. The key here is "
            "limits.shape.");
  EXPECT_EQ(refusal_of("kind: [box]\n"),
            "a.yaml:1: kind is a list; what is taken here: circle, box, any. The key here is "
            "limits.shape.");
}

// What a value says besides gives way to whoever says it himself.
TEST(ForeignNames, SetOtherKeysThatNobodyGives) {
  const Limits both = read("bound: 3\n").limits;
  EXPECT_EQ(both.low, 3);
  EXPECT_EQ(both.high, 3);
  EXPECT_EQ(read("bound: 3\nlimits: {high: 5}\n").limits.high, 5);
  EXPECT_EQ(read("limits: {high: 5}\n", {"bound=3"}).limits.high, 3);
  EXPECT_EQ(read("bound: 3\n", {"limits.high=5"}).limits.high, 5);
  const Limits box = read("kind: box\n").limits;
  EXPECT_EQ(box.size, 7);
  EXPECT_EQ(box.high, 8);
}

// What a name says itself is more than what another says besides, whatever their layers are. Least
// is what a value says that says nothing else.
TEST(ForeignNames, SetNoKeysThatAnotherNameGives) {
  const Limits named = read("use_weight: true\nweight: 5\n", {"bound=3"}).limits;
  EXPECT_EQ(named.low, 3);
  EXPECT_EQ(named.high, 5);
  EXPECT_EQ(read("kind: box\n", {"use_weight=true"}).limits.high, 8);
  EXPECT_EQ(read("use_weight: true\n", {"kind=box"}).limits.high, 8);
  EXPECT_EQ(read("use_weight: true\nkind: box\n").limits.high, 8);
}

TEST(ForeignNames, ThatMeanAnotherThingAreRefusedWithWhatToWrite) {
  EXPECT_EQ(refusal_of("count: 4\n"), "a.yaml:1: count: it counts pairs. Write limits.size.");
  // All that is wrong is in one message, in the order of the file.
  EXPECT_EQ(
      refusal_of("limits: {low: 77}\ngpu: true\nlowst: 1\n"),
      "a.yaml:1: limits.low is 77; it must be an integer from 0 to 9. Try 1.\n"
      "       a.yaml:2: gpu: there is none. Remove it.\n"
      "       a.yaml:3: lowst is not a known key; the nearest is lowest of A, here limits.low");
}

TEST(ForeignNames, WithAConditionAreTakenOnlyWhileItHolds) {
  EXPECT_EQ(read("amount: 4\n").limits.size, 4);
  EXPECT_EQ(read("amount: 4\nlowest: 1\n").limits.size, 4);
  EXPECT_EQ(refusal_of("amount: 4\nlowest: 2\n"),
            "a.yaml:1: amount with limits.low = 2: divide it by limits.low.");
}

// A value of theirs that counts while a switch of theirs is on, in whatever layers they are.
TEST(ForeignNames, OfASwitchCountWhileItIsOn) {
  EXPECT_EQ(read("weight: 4\nuse_weight: true\n").limits.high, 4);
  EXPECT_EQ(read("use_weight: True\n", {"weight=4"}).limits.high, 4);
  EXPECT_EQ(read("weight: 4\n", {"use_weight=true"}).limits.high, 4);
  EXPECT_EQ(read("use_weight: true\n").limits.high, 6);
  EXPECT_EQ(read("use_weight: false\n").limits.high, 0);
  EXPECT_EQ(read("use_weight: true\nweight: 4\n", {"limits.high=3"}).limits.high, 3);
  const std::string told = "weight: it wants use_weight. Write limits.high.";
  EXPECT_EQ(refusal_of("weight: 4\n"), "a.yaml:1: " + told);
  EXPECT_EQ(refusal_of("weight: 4\nuse_weight: false\n"), "a.yaml:1: " + told);
  EXPECT_EQ(refusal_of("weight: 4\nuse_weight: true\n", {"use_weight=false"}), "a.yaml:1: " + told);
  EXPECT_EQ(refusal_of("use_weight: false\n", {"weight=4"}), "override weight=4: " + told);
}

// One of them says what the key is, and one note says which.
TEST(ForeignNames, OfASwitchHaveOneNote) {
  EXPECT_EQ(notes_of("weight: 4\nuse_weight: true\n"),
            Notes{"a.yaml:1: weight is read as limits.high"});
  EXPECT_EQ(notes_of("use_weight: true\n"),
            Notes{"a.yaml:1: use_weight = true is read as limits.high = 6"});
  EXPECT_EQ(notes_of("use_weight: true\nlimits: {high: 3}\n"),
            Notes{"a.yaml:1: use_weight = true leaves limits.high as it is"});
}

TEST(ForeignNames, MayBeCalledAsASectionOfOurs) {
  EXPECT_EQ(read("limits: {low: 5}\n").limits.low, 5);
  EXPECT_EQ(refusal_of("limits: 5\n"), "a.yaml:1: limits: it is a section. Remove it.");
}

// Whoever brings a whole recipe wants to know all that has to go.
TEST(ForeignNames, ThatAreTooManyForAScreenAreListed) {
  std::string text;
  for (char name = 'a'; name < 'o'; ++name) text += fmt::format("odd_{}: 1\n", name);
  const std::string error = refusal_of(text + "limits: {low: 77}\n");
  EXPECT_TRUE(error.ends_with("\n       and 3 more: odd_m, odd_n and others")) << error;
  // Not those of a recipe of another framework, which is told all at once.
  EXPECT_TRUE(refusal_of(text + "gpu: true\n")
                  .ends_with("\n       a.yaml:15: gpu: there is none. Remove it."));
}

TEST(ForeignNames, TakeAListOfOneWhereOneIsWanted) {
  TemporaryDirectory folder;
  const auto config = folder.write("a.yaml", "files: [b.jsonl]\n");
  Root root;
  bind_config(load_config(config, {}), root, names());
  EXPECT_EQ(root.limits.file, (folder.path() / "b.jsonl").string());
  EXPECT_EQ(refusal_of("files: [b, c]\n"),
            "a.yaml:1: files has 2 values; limits.file takes one. Join them.");
}

TEST(ForeignNames, MayBeEntriesOfAMap) {
  using Columns = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(read("data: {key: question}\n").limits.columns, (Columns{{"prompt", "question"}}));
  EXPECT_EQ(notes_of("data: {key: question}\n"),
            Notes{"a.yaml:1: data.key is read as limits.columns.prompt"});
  EXPECT_EQ(read("limits: {columns: {answer: a}}\ndata: {key: q}\n").limits.columns,
            (Columns{{"answer", "a"}, {"prompt", "q"}}));
  EXPECT_EQ(refusal_of("limits: {columns: {prompt: a}}\ndata: {key: q}\n"),
            "a.yaml:2: data.key and limits.columns.prompt (at a.yaml:1) are two names of "
            "limits.columns.prompt. Remove one of them.");
}

TEST(ForeignNames, OfABadValueAreInTheMessage) {
  EXPECT_EQ(refusal_of("lowest: x\n"),
            "a.yaml:1: limits.low (written lowest) is x; it must be an integer from 0 to 9.");
}

TEST(ForeignNames, WithoutAValueSayNothing) {
  EXPECT_EQ(read("lowest: null\nkind: None\ngpu:\n").limits.low, 1);
  EXPECT_EQ(notes_of("gpu: null\n"), Notes{"a.yaml:1: gpu says nothing"});
  // As a shell passes them on.
  for (const char* value : {"null", "~", "None", ""}) {
    EXPECT_EQ(read("", {fmt::format("lowest={}", value)}).limits.low, 1) << value;
    EXPECT_EQ(read("", {fmt::format("engine.bounds.low={}", value)}).limits.low, 1) << value;
    EXPECT_EQ(read("", {fmt::format("kind={}", value)}).limits.shape, Shape::kRound) << value;
    EXPECT_EQ(read("", {fmt::format("gpu={}", value)}).limits.low, 1) << value;
  }
  EXPECT_EQ(refusal_of("", {"limits.low=null"}),
            "override limits.low=null: limits.low is nothing; it must be an integer from 0 to 9.");
}

// Frameworks print whole sections of defaults.
TEST(ForeignNames, OfSectionsThatAreOffSayNothing) {
  for (const char* section : {"{path: null, name: f}", "{path: None, kwargs: {a: 1}}",
                              "{enable: False, name: f}", "{a: null, b: {c: null, d: []}}"})
    EXPECT_EQ(refusal_of(fmt::format("gpu: {}\n", section)), "(no error)") << section;
  EXPECT_EQ(refusal_of("", {"gpu.path=null", "gpu.name=f"}), "(no error)");
  for (const char* section :
       {"{path: a, name: f}", "{name: f}", "{enable: true}", "{a: null, b: 1}"})
    EXPECT_EQ(refusal_of(fmt::format("gpu: {}\n", section)),
              "a.yaml:1: gpu: there is none. Remove it.")
        << section;
}

TEST(ForeignNames, ThatSayNothingShareOneNoteWhereTheyAreMany) {
  EXPECT_EQ(notes_of("gpu: null\ncount: null\nidle: false\n").size(), 3u);
  EXPECT_EQ(notes_of("gpu: null\nkind: any\nidle: false\nengine: {empty: {}}\nlowest: 5\n"),
            (Notes{"4 names say nothing here or leave our keys as they are: gpu, kind, idle, "
                   "engine.empty",
                   "a.yaml:5: lowest is read as limits.low"}));
}

// They switch nothing on, and a recipe is full of them.
TEST(ForeignNames, WithANeutralValueSayNothing) {
  for (const char* value : {"false", "False", "1", "1.0", "\"\"", "[]", "{}"})
    EXPECT_EQ(refusal_of(fmt::format("idle: {}\n", value)), "(no error)") << value;
  EXPECT_EQ(notes_of("idle: False\n"), Notes{"a.yaml:1: idle = False says nothing"});
  EXPECT_EQ(refusal_of("idle: true\n"), "a.yaml:1: idle: there is none.");
  // A coefficient without its switch, but not with it.
  EXPECT_EQ(read("weight: 0.0\n").limits.high, 2);
  EXPECT_EQ(read("weight: 0\nuse_weight: true\n").limits.high, 0);
}

TEST(ForeignNames, WhoseSectionsAreEmptySayNothing) {
  EXPECT_EQ(notes_of("engine: {empty: {}}\n"), Notes{"a.yaml:1: engine.empty says nothing"});
  EXPECT_EQ(notes_of("engine:\n"), Notes{"a.yaml:1: engine says nothing"});
  EXPECT_EQ(refusal_of("engine: {other: {}}\n"),
            "a.yaml:1: engine.other: no option of B or C that is known; docs/coming-from.md lists "
            "them");
}

// A refused neighbour is no second name of the key that their section is called like.
TEST(ForeignNames, InASectionThatIsAKeyOfOursStandInItsPlace) {
  EXPECT_EQ(read("limits: {shape: {kind: square}}\n").limits.shape, Shape::kSquare);
  EXPECT_EQ(refusal_of("limits: {shape: {kind: square, gpu: 1}}\n"),
            "a.yaml:1: limits.shape.gpu: there is none.");
  EXPECT_EQ(refusal_of("limits: {shape: {kind: square, odd: 1}}\n"),
            "a.yaml:1: limits.shape.odd is not a known key; 'tailrace docs' lists them");
}

TEST(ForeignNames, MayWantAKeyThatSomebodyGives) {
  EXPECT_EQ(refusal_of("use_size: true\n"),
            "a.yaml:1: use_size is true: its size is missing. Write size.");
  EXPECT_EQ(read("use_size: true\nlimits: {size: 4}\n").limits.shape, Shape::kSquare);
  EXPECT_EQ(read("use_size: true\n", {"amount=4"}).limits.size, 4);
}

// Lines that a person pastes in the place of the refused one.
TEST(ForeignNames, ThatAreRefusedProposeWhatToWrite) {
  EXPECT_EQ(refusal_of("both: 2\nlimits: {size: 4}\n"),
            "a.yaml:1: both: write both bounds.\n"
            "         both: 2  ->  limits.low: 2\n"
            "                      limits.high: 8");
  EXPECT_EQ(refusal_of("limits: {size: 4}\n", {"both=2"}),
            "override both=2: both: write both bounds.\n"
            "         both=2  ->  limits.low=2 limits.high=8");
  // Nothing is proposed that cannot be worked out.
  EXPECT_EQ(refusal_of("both: 2\n"), "a.yaml:1: both: write both bounds.");
  EXPECT_EQ(refusal_of("both: x\nlimits: {size: 4}\n"), "a.yaml:1: both: write both bounds.");
}

TEST(ForeignNames, SayInTheLogHowTheyDiffer) {
  EXPECT_EQ(notes_of("passes: 3\n"), (Notes{"a.yaml:1: passes: the last is cut",
                                            "a.yaml:1: passes is read as limits.high"}));
}

// What stands beside them in their sections is unknown, and said to be.
TEST(ForeignNames, LeaveTheRestOfTheirSectionUnknown) {
  EXPECT_EQ(
      refusal_of("engine: {bounds: {low: 5, odd: 1}}\n"),
      "a.yaml:1: engine.bounds.odd: no option of B that is known; docs/coming-from.md lists them");
  EXPECT_EQ(refusal_of("engine: {other: 1}\n"),
            "a.yaml:1: engine.other: no option of B or C that is known; docs/coming-from.md lists "
            "them");
}

// As the command line has keys, at the top alone.
TEST(ForeignNames, AKeyWithDotsStandsAtTheTop) {
  EXPECT_EQ(read("limits.low: 5\n").limits.low, 5);
  EXPECT_EQ(refusal_of("limits: {shape.kind: square, columns.a: b}\n"),
            "a.yaml:1: limits.columns.a is not a known key; the nearest is limits.columns");
}

// In a section that is neither theirs nor that of our key.
TEST(ForeignNames, InTheWrongPlaceAreAnsweredAsWell) {
  EXPECT_EQ(refusal_of("some: {lowest: 5, odd: 1}\n"),
            "a.yaml:1: some.lowest is not a known key; here it is called limits.low");
  EXPECT_EQ(refusal_of("some: {count: 5}\n"),
            "a.yaml:1: some.count is not a known key: it counts pairs. Write limits.size.");
  // A word like `low` says nothing of where it comes from.
  EXPECT_EQ(refusal_of("some: {low: 5}\n"),
            "a.yaml:1: some is not a known key; 'tailrace docs' lists them");
}

TEST(ForeignNames, WithoutSectionsAreTakenInTheSectionOfTheKeyToo) {
  EXPECT_EQ(read("limits: {lowest: 5}\n").limits.low, 5);
  EXPECT_EQ(notes_of("limits: {lowest: 5}\n"),
            Notes{"a.yaml:1: limits.lowest is read as limits.low"});
  EXPECT_EQ(refusal_of("limits: {lowest: 5}\nlowest: 6\n"),
            "a.yaml:1: limits.lowest and lowest (at a.yaml:2) are two names of limits.low. Remove "
            "one of them.");
}

TEST(ForeignNames, OfNoTableAreUnknown) {
  Root root;
  EXPECT_THROW(bind_config(parse_config("lowest: 5\n", "a.yaml", {}), root), UserError);
}

}  // namespace
}  // namespace tailrace
