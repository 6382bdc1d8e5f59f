#include "core/config/yaml_config.h"

#include <map>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

// Options of every type that a section may hold, with bounds, lists and a section in a
// section.
struct Sampling {
  double temperature = 1.0;
  int64_t top_k = -1;
  void visit(OptionVisitor& v) {
    v.field("temperature", temperature, {.help = "0 is greedy", .min = 0, .max = 10});
    v.field("top_k", top_k, {.help = "-1: off", .min = -1});
  }
};

struct Rollout {
  int64_t group_size = 8;
  int64_t max_response_tokens = 0;
  std::vector<std::string> stop = {"\n"};
  std::vector<double> betas = {0.9, 0.95};
  Sampling sampling;
  void visit(OptionVisitor& v) {
    v.field("group_size", group_size, {.help = "members of a group", .min = 1});
    v.field("max_response_tokens", max_response_tokens,
            {.help = "tokens of one answer", .min = 1, .required = true});
    v.field("stop", stop, {.help = "what ends an answer"});
    v.field("betas", betas, {.help = "Adam", .min = 0, .max = 1});
    v.section("sampling", sampling, "how tokens are drawn");
  }
};

enum class Mode { kSync, kAsync };
constexpr auto enum_names(Mode) {
  return name_table<Mode>({{Mode::kSync, "sync"}, {Mode::kAsync, "async"}});
}

struct YamlRoot {
  std::string name = "run";
  Mode mode = Mode::kSync;
  bool verbose = false;
  std::vector<std::pair<std::string, std::string>> settings;
  Rollout rollout;
  void visit(OptionVisitor& v) {
    v.field("name", name, {.help = "of the run"});
    v.field("mode", mode, {.help = "how"});
    v.field("verbose", verbose, {.help = "says more", .resume = Resume::kMayChange});
    v.field("settings", settings, {.help = "of the environment"});
    v.section("rollout", rollout, "how episodes are made");
  }
};

constexpr const char* kMinimal = "rollout: {max_response_tokens: 4}\n";

const std::vector<ForeignName> kForeign = {
    {.programs = "A", .name = "n", .key = "rollout.group_size"},
    {.programs = "A", .name = "other.group.size", .key = "rollout.group_size"},
    {.programs = "B",
     .name = "old.async.enable",
     .key = "mode",
     .values = {{.theirs = "true", .ours = "async"}, {.theirs = "false", .ours = ""}}},
    {.programs = "B",
     .name = "old.wait",
     .key = "mode",
     .values = {{.theirs = "true", .ours = "sync"}, {.theirs = "false", .ours = "async"}}},
    {.programs = "B", .name = "eps_clip", .key = "loss.clip"},
};

YamlRoot read_yaml(const std::string& text, std::vector<std::string> overrides = {},
                   ConfigKeys* keys = nullptr) {
  YamlRoot root;
  ConfigKeys bound = bind_config(parse_config(text, "a.yaml", overrides), root, kForeign);
  if (keys) *keys = bound;
  return root;
}

std::string error_of(const std::string& text, std::vector<std::string> overrides = {}) {
  try {
    read_yaml(text, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

// The error of a file whose fourth line is `line`, below `rollout:` with everything that is
// required.
std::string rollout_error(const std::string& line) {
  return error_of("name: x\nrollout:\n  max_response_tokens: 4\n  " + line + "\n");
}

// A shell takes the quotes of key="".
TEST(BindConfig, AnOverrideWithoutAValueIsAnEmptyText) {
  const YamlRoot root = read_yaml(kMinimal, {"name=", "settings.a="});
  EXPECT_EQ(root.name, "");
  EXPECT_EQ(root.settings, (std::vector<std::pair<std::string, std::string>>{{"a", ""}}));
  EXPECT_EQ(error_of(kMinimal, {"mode="}),
            "override mode=: mode is nothing; it must be one of: sync, async.");
  EXPECT_EQ(error_of(kMinimal, {"rollout.group_size="}),
            "override rollout.group_size=: rollout.group_size is nothing; it must be an integer >= "
            "1.");
  EXPECT_EQ(error_of("name:\n" + std::string(kMinimal)),
            "a.yaml:1: name is nothing; it must be text. Write \"\" for an empty text.");
}

TEST(BindConfig, FillsFieldsAndKeepsDefaults) {
  YamlRoot root = read_yaml(
      "name: 12\nmode: async\nverbose: true\nsettings: {size: 6, kind: 'a b'}\n"
      "rollout:\n  group_size: 4\n  max_response_tokens: +16\n  stop: [\"a\\n\", b]\n  betas: [0, "
      "1e-1]\n"
      "  sampling: {temperature: 0.5}\n");
  // A scalar is text until its field says what it is: the name stays "12".
  EXPECT_EQ(root.name, "12");
  EXPECT_EQ(root.mode, Mode::kAsync);
  EXPECT_TRUE(root.verbose);
  EXPECT_EQ(root.settings,
            (std::vector<std::pair<std::string, std::string>>{{"size", "6"}, {"kind", "a b"}}));
  EXPECT_EQ(root.rollout.group_size, 4);
  EXPECT_EQ(root.rollout.max_response_tokens, 16);
  EXPECT_EQ(root.rollout.stop, (std::vector<std::string>{"a\n", "b"}));
  EXPECT_EQ(root.rollout.betas, (std::vector<double>{0, 0.1}));
  EXPECT_EQ(root.rollout.sampling.temperature, 0.5);
  EXPECT_EQ(root.rollout.sampling.top_k, -1);
}

TEST(BindConfig, NamesTheNearestKeyOfAnUnknownOne) {
  EXPECT_EQ(rollout_error("gruop_size: 4"),
            "a.yaml:4: rollout.gruop_size is not a known key; the nearest is rollout.group_size");
  EXPECT_EQ(error_of("rollouts: {group_size: 3}\n" + std::string(kMinimal)),
            "a.yaml:1: rollouts is not a known key; the nearest is rollout");
  EXPECT_EQ(
      error_of(std::string(kMinimal) + "temperature: 1\n"),
      "a.yaml:2: temperature is not a known key; the nearest is rollout.sampling.temperature");
  EXPECT_EQ(rollout_error("response: 4"),
            "a.yaml:4: rollout.response is not a known key; the nearest is "
            "rollout.max_response_tokens");
  EXPECT_EQ(error_of(std::string(kMinimal) + "trainer: {eps_clip: 1}\n").substr(0, 16),
            "a.yaml:2: traine");
  EXPECT_EQ(error_of(kMinimal, {"rollout.max_turn=3"}).substr(0, 58),
            "override rollout.max_turn=3: rollout.max_turn is not a kno");
}

TEST(BindConfig, SaysWhatWasFoundWhatIsAcceptedAndWhatToTry) {
  EXPECT_EQ(rollout_error("group_size: 0"),
            "a.yaml:4: rollout.group_size is 0; it must be an integer >= 1. Try 8.");
  EXPECT_EQ(rollout_error("group_size: 0.3"),
            "a.yaml:4: rollout.group_size is 0.3; it must be an integer >= 1. Try 8.");
  // What people write for numbers elsewhere; each gets the hint that fits.
  EXPECT_EQ(rollout_error("group_size: 4k"),
            "a.yaml:4: rollout.group_size is 4k; it must be an integer >= 1. Units are in the "
            "key's name; write 4000 or 4096.");
  EXPECT_EQ(rollout_error("group_size: 64.0"),
            "a.yaml:4: rollout.group_size is 64.0; it must be an integer >= 1. Try 64.");
  EXPECT_EQ(rollout_error("group_size: 1e3"),
            "a.yaml:4: rollout.group_size is 1e3; it must be an integer >= 1. Try 1000.");
  EXPECT_EQ(rollout_error("group_size: 1_000"),
            "a.yaml:4: rollout.group_size is 1_000; it must be an integer >= 1. Try 1000.");
  EXPECT_EQ(rollout_error("group_size: 1,000,000"),
            "a.yaml:4: rollout.group_size is 1,000,000; it must be an integer >= 1. Try 1000000.");
  // A decimal comma is no mark of thousands.
  const auto advice = [](const std::string& text) {
    const std::string error = error_of(kMinimal, {"rollout.sampling.temperature=" + text});
    return error.substr(error.find("10.") + 4);
  };
  EXPECT_EQ(advice("5,0e-1"), "Try 5.0e-1.");
  EXPECT_EQ(advice("0,001"), "Try 0.001.");
  EXPECT_EQ(advice("-0,5"), "Try 1.") << "below the range";
  EXPECT_EQ(advice("5,5%"), "Write the fraction: 0.055.");
  EXPECT_EQ(advice("1,000"), "Write 1.000, or 1000 if you mean that.");
  EXPECT_EQ(error_of(kMinimal, {"rollout.sampling.temperature=1,2,3"}),
            "override rollout.sampling.temperature=1,2,3: rollout.sampling.temperature is 1,2,3; "
            "it must be a number from 0 to 10.");
  EXPECT_EQ(rollout_error("group_size: \"8\""),
            "a.yaml:4: rollout.group_size is \"8\" (text in quotes); it must be an integer >= 1. "
            "Remove the quotes.");
  EXPECT_EQ(rollout_error("group_size: many"),
            "a.yaml:4: rollout.group_size is many; it must be an integer >= 1.");
  EXPECT_EQ(rollout_error("group_size:"),
            "a.yaml:4: rollout.group_size is nothing; it must be an integer >= 1.");
  EXPECT_EQ(rollout_error("group_size: [4]"),
            "a.yaml:4: rollout.group_size is a list; it must be an integer >= 1.");
  EXPECT_EQ(
      rollout_error("group_size: 99999999999999999999"),
      "a.yaml:4: rollout.group_size is 99999999999999999999; it must be an integer of 64 bits "
      ">= 1. Try 8.");
  EXPECT_EQ(error_of("rollout: {max_response_tokens: 0}\n"),
            "a.yaml:1: rollout.max_response_tokens is 0; it must be an integer >= 1. Try 1.");
  EXPECT_EQ(rollout_error("sampling: {temperature: 50%}"),
            "a.yaml:4: rollout.sampling.temperature is 50%; it must be a number from 0 to 10. "
            "Write the fraction: 0.5.");
  EXPECT_EQ(
      rollout_error("sampling: {temperature: 11}"),
      "a.yaml:4: rollout.sampling.temperature is 11; it must be a number from 0 to 10. Try 1.");
  EXPECT_EQ(rollout_error("sampling: {temperature: .nan}"),
            "a.yaml:4: rollout.sampling.temperature is .nan; it must be a number from 0 to 10.");
  EXPECT_EQ(rollout_error("sampling: {temperature: 30s}"),
            "a.yaml:4: rollout.sampling.temperature is 30s; it must be a number from 0 to 10. "
            "Units are in the key's name; write the number without 's'.");
  EXPECT_EQ(rollout_error("sampling: hot"),
            "a.yaml:4: rollout.sampling is hot; it is a section (with keys below it)");
  EXPECT_EQ(rollout_error("stop: end"),
            "a.yaml:4: rollout.stop is end; it must be a list of texts. Try [end].");
  EXPECT_EQ(rollout_error("betas: [0.9, 2]"),
            "a.yaml:4: rollout.betas[1] is 2; it must be a number from 0 to 1. Try 0.95.");
  EXPECT_EQ(rollout_error("betas: [0, 1, x]"),
            "a.yaml:4: rollout.betas[2] is x; it must be a number from 0 to 1.");
  EXPECT_EQ(rollout_error("betas: [0, 1, -1]"),
            "a.yaml:4: rollout.betas[2] is -1; it must be a number from 0 to 1. Try 0.");
  EXPECT_EQ(rollout_error("betas: 0.9"),
            "a.yaml:4: rollout.betas is 0.9; it must be a list, each a number from 0 to 1. Try "
            "[0.9].");
  EXPECT_EQ(rollout_error("stop: [a, [b]]"),
            "a.yaml:4: rollout.stop[1] is a list; it must be text.");
  EXPECT_EQ(error_of("mode: asinc\n" + std::string(kMinimal)),
            "a.yaml:1: mode is asinc; it must be one of: sync, async. Try async.");
  EXPECT_EQ(error_of("mode: [sync]\n" + std::string(kMinimal)),
            "a.yaml:1: mode is a list; it must be one of: sync, async.");
  EXPECT_EQ(error_of("mode:\n" + std::string(kMinimal)),
            "a.yaml:1: mode is nothing; it must be one of: sync, async.");
  EXPECT_EQ(error_of("verbose: yes\n" + std::string(kMinimal)),
            "a.yaml:1: verbose is yes; it must be true or false. Try true.");
  EXPECT_EQ(error_of("name: {a: b}\n" + std::string(kMinimal)),
            "a.yaml:1: name is a section; it must be text.");
  EXPECT_EQ(error_of("settings: {a: [1]}\n" + std::string(kMinimal)),
            "a.yaml:1: settings.a is a list; it must be one plain value.");
}

// As Python and YAML 1.2 write them.
TEST(BindConfig, TakesTheBooleansOfYaml) {
  for (const char* text : {"true", "True", "TRUE"})
    EXPECT_EQ(error_of(fmt::format("verbose: {}\n{}", text, kMinimal)), "(no error)") << text;
  for (const char* text : {"\"true\"", "tRUE", "1"})
    EXPECT_NE(error_of(fmt::format("verbose: {}\n{}", text, kMinimal)), "(no error)") << text;
}

TEST(BindConfig, ListsAllMistakesAtOnce) {
  EXPECT_EQ(
      error_of("verbose: maybe\nrollout:\n  group_size: -1\n  groupsize: 1\n"),
      "a.yaml:1: verbose is maybe; it must be true or false.\n"
      "       a.yaml:2: rollout.max_response_tokens is missing; it is required: tokens of one "
      "answer\n"
      "       a.yaml:3: rollout.group_size is -1; it must be an integer >= 1. Try 8.\n"
      "       a.yaml:4: rollout.groupsize is not a known key; the nearest is rollout.group_size");
}

TEST(BindConfig, RequiresWhatHasNoDefault) {
  EXPECT_EQ(
      error_of(""),
      "a.yaml:1: rollout.max_response_tokens is missing; it is required: tokens of one answer");
  EXPECT_EQ(error_of("rollout:\n").substr(0, 44), "a.yaml:1: rollout.max_response_tokens is mis");
}

TEST(BindConfig, ReadsForeignNamesWithANote) {
  ConfigKeys keys;
  YamlRoot root = read_yaml("rollout:\n  max_response_tokens: 4\n  n: 3\n", {}, &keys);
  EXPECT_EQ(root.rollout.group_size, 3);
  EXPECT_EQ(keys.notes(),
            (std::vector<std::string>{"a.yaml:3: rollout.n is read as rollout.group_size"}));
  EXPECT_TRUE(keys.given("rollout.group_size"));
  EXPECT_EQ(rollout_error("n: 3\n  group_size: 4"),
            "a.yaml:4: rollout.n and rollout.group_size (at a.yaml:5) are two names of "
            "rollout.group_size. Remove one of them.");
  // An override under one name wins over the file under another.
  EXPECT_EQ(read_yaml("rollout: {max_response_tokens: 4, n: 3}\n", {"rollout.group_size=9"})
                .rollout.group_size,
            9);
  EXPECT_EQ(read_yaml("rollout: {max_response_tokens: 4, group_size: 3}\n", {"rollout.n=9"})
                .rollout.group_size,
            9);
}

TEST(BindConfig, ReadsForeignNamesFromOtherSections) {
  ConfigKeys keys;
  const YamlRoot root =
      read_yaml("other: {group: {size: 3}}\nrollout: {max_response_tokens: 4}\n", {}, &keys);
  EXPECT_EQ(root.rollout.group_size, 3);
  EXPECT_EQ(keys.notes(),
            (std::vector<std::string>{"a.yaml:1: other.group.size is read as rollout.group_size"}));
  // Its neighbours stay unknown.
  EXPECT_EQ(error_of("rollout: {max_response_tokens: 4}\nother:\n  group: {size: 3}\n  x: 4\n"),
            "a.yaml:4: other.x: no option of A that is known; docs/coming-from.md lists them");
  EXPECT_EQ(error_of("rollout: {max_response_tokens: 4}\nother: 3\n"),
            "a.yaml:2: other is not a known key; 'tailrace docs' lists them");
}

TEST(BindConfig, KnowsWhatWasGivenAndWhere) {
  ConfigKeys keys;
  read_yaml("rollout:\n  max_response_tokens: 4\nsettings: {size: 3}\n",
            {"rollout.sampling.top_k=5"}, &keys);
  EXPECT_TRUE(keys.given("rollout.sampling.top_k"));
  EXPECT_FALSE(keys.given("rollout.group_size"));
  EXPECT_EQ(keys.where("rollout.max_response_tokens"), "a.yaml:2");
  EXPECT_EQ(keys.where("settings.size"), "a.yaml:3");
  EXPECT_EQ(keys.where("rollout.sampling.top_k"), "override rollout.sampling.top_k=5");
  EXPECT_EQ(keys.where("rollout.group_size"), "the defaults");
}

TEST(ConfigKeys, PutThePlaceOfAMistakesKeyInFront) {
  ConfigKeys keys;
  read_yaml("rollout:\n  max_response_tokens: 4\nsettings: {size: 3}\n", {"verbose=true"}, &keys);
  auto text = [&](const UserError& error) { return std::string(keys.placed(error).what()); };
  EXPECT_EQ(text(UserError::at("rollout.max_response_tokens", "is {}", 4)),
            "a.yaml:2: rollout.max_response_tokens is 4");
  EXPECT_EQ(text(UserError::at("verbose", "is true")), "override verbose=true: verbose is true");
  EXPECT_EQ(text(UserError("too {}", "small").about("settings.size")), "a.yaml:3: too small");
  // Not given, and about no key.
  EXPECT_EQ(text(UserError::at("name", "is run")), "name is run");
  EXPECT_EQ(text(UserError("verbose is true")), "verbose is true");
  EXPECT_EQ(text(keys.placed(UserError::at("verbose", "is true"))),
            "override verbose=true: verbose is true")
      << "a place is said once";
}

struct PathRoot {
  std::string model;
  void visit(OptionVisitor& v) { v.field("model", model, {.help = "a folder", .path = true}); }
};

TEST(BindConfig, TakesPathsRelativeToTheFileThatNamesThem) {
  TemporaryDirectory folder;
  auto path = folder.write("configs/a.yaml", "extends: more/b.yaml\n");
  folder.write("configs/more/b.yaml", "model: ../../models/m\n");
  auto model = [&](std::vector<std::string> overrides) {
    PathRoot root;
    bind_config(load_config(path, overrides), root);
    return root.model;
  };
  EXPECT_EQ(model({}), (folder / "models/m").string());
  EXPECT_EQ(model({"model=/abs/x"}), "/abs/x");
  // An override has no file: it is relative to where the command runs.
  EXPECT_EQ(model({"model=here"}), (std::filesystem::current_path() / "here").string());
  EXPECT_EQ(model({"model=\"\""}), "");
  EXPECT_EQ(describe_options(PathRoot{})[0].options[0].type, "path");
}

struct CommandRoot {
  std::vector<std::string> command;
  void visit(OptionVisitor& v) { v.field("command", command, {.help = "words", .path = true}); }
};

TEST(BindConfig, OfAListTheFilesThatAreThereAreRelativeToTheFileThatNamesThem) {
  TemporaryDirectory folder;
  const auto path = folder.write("configs/a.yaml", "command: [python3, ../own.py, -x, configs]\n");
  folder.write("own.py", "");
  folder.write("configs/configs/in.txt", "");  // a folder is no file
  CommandRoot root;
  bind_config(load_config(path, {}), root);
  const std::string own = (folder / "own.py").string();
  EXPECT_EQ(root.command, (std::vector<std::string>{"python3", own, "-x", "configs"}));
  // What a run has kept is read back as it is.
  bind_config(parse_config(print_config(root), "again", {}), root);
  EXPECT_EQ(root.command[1], own);
  try {
    bind_config(load_config(path, std::vector<std::string>{"command=sh a.sh"}), root);
    ADD_FAILURE() << "it is no list";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("Try [sh, a.sh]."), std::string::npos) << error.what();
  }
}

// A list of sections.
struct Item {
  std::string name;
  double ratio = 1;
  std::vector<std::pair<std::string, std::string>> settings;
  void visit(OptionVisitor& v) {
    v.field("name", name, {.help = "of the item", .required = true});
    v.field("ratio", ratio, {.help = "its share", .min = 0, .max = 9});
    v.field("settings", settings, {.help = "its own"});
  }
};
struct ListRoot {
  std::vector<Item> items;
  int64_t seed = 0;
  void visit(OptionVisitor& v) {
    v.list("items", items, "what there is");
    v.field("seed", seed, {.help = "of all"});
  }
};

ListRoot read_list(const std::string& text, std::vector<std::string> overrides = {},
                   ConfigKeys* keys = nullptr) {
  ListRoot root;
  ConfigKeys bound = bind_config(parse_config(text, "a.yaml", overrides), root);
  if (keys) *keys = bound;
  return root;
}
std::string list_error(const std::string& text, std::vector<std::string> overrides = {}) {
  try {
    read_list(text, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

constexpr const char* kTwoItems =
    "items:\n  - name: grid\n    ratio: 3\n    settings: {a: 1}\n  - {name: sums}\n";

TEST(BindConfig, ReadsAListOfSections) {
  ConfigKeys keys;
  const ListRoot root = read_list(kTwoItems, {"items.sums.ratio=2"}, &keys);
  ASSERT_EQ(root.items.size(), 2u);
  EXPECT_EQ(root.items[0].name, "grid");
  EXPECT_EQ(root.items[0].ratio, 3);
  EXPECT_EQ(root.items[0].settings[0].second, "1");
  EXPECT_EQ(root.items[1].ratio, 2) << "named by the override";
  EXPECT_EQ(keys.where("items"), "a.yaml:1");
  EXPECT_EQ(keys.where("items.grid.ratio"), "a.yaml:3");
  EXPECT_EQ(keys.where("items.grid.settings.a"), "a.yaml:4");
  EXPECT_EQ(keys.where("items.sums"), "a.yaml:5");
  EXPECT_EQ(keys.where("items.sums.ratio"), "override items.sums.ratio=2");
  // The way back.
  const std::string text = print_config(root);
  EXPECT_EQ(text,
            "items:\n  - name: grid\n    ratio: 3\n    settings: {a: 1}\n"
            "  - name: sums\n    ratio: 2\n    settings: {}\nseed: 0\n");
  EXPECT_EQ(print_config(read_list(text)), text);
  EXPECT_EQ(print_config(ListRoot{}), "items: []\nseed: 0\n");
  EXPECT_TRUE(read_list("items: []\n").items.empty());
  EXPECT_TRUE(read_list(kTwoItems, {"items="}).items.empty());
  // What is there stays, where a file says nothing of it.
  ListRoot kept = root;
  bind_config(parse_config("seed: 1\n", "b.yaml", {}), kept);
  EXPECT_EQ(kept.items.size(), 2u);
}

TEST(BindConfig, NamesTheItemThatIsWrong) {
  EXPECT_EQ(list_error("items:\n  - {name: a, ratio: 10}\n  - {name: b, rato: 1}\n"),
            "a.yaml:2: items.a.ratio is 10; it must be a number from 0 to 9. Try 1.\n"
            "       a.yaml:3: items.b.rato is not a known key; the nearest is items.b.ratio");
  EXPECT_EQ(list_error("items:\n  - ratio: 1\n  - 7\n"),
            "a.yaml:2: items[0].name is missing; it is required: of the item\n"
            "       a.yaml:3: items[1] is 7; it must be a section (with keys below it)");
  EXPECT_EQ(list_error("items: {name: a}\n"),
            "a.yaml:1: items is a section; it must be a list of sections (- name: ...)");
  // Of two with one name none is called by it.
  EXPECT_EQ(list_error("items:\n  - {name: a}\n  - {name: a, ratio: x}\n"),
            "a.yaml:3: items[1].ratio is x; it must be a number from 0 to 9.");
  EXPECT_EQ(list_error(kTwoItems, {"items.sum.ratio=2"}),
            "override items.sum.ratio=2: the list at a.yaml:1 has no sum; it has grid, sums");
}

TEST(DescribeOptions, ShowsWhatAnItemOfAListHas) {
  EXPECT_EQ(describe_options(ListRoot{})[1].options[1].key, "items.NAME.ratio");
  EXPECT_TRUE(describe_options(ListRoot{})[1].options[0].required);
  const auto sections = describe_options(read_list(kTwoItems));
  EXPECT_EQ(sections[1].key, "items");
  ASSERT_EQ(sections[1].options.size(), 6u);
  EXPECT_EQ(sections[1].options[1].key, "items.grid.ratio");
  EXPECT_EQ(sections[1].options[4].key, "items.sums.ratio");
}

TEST(PrintConfig, LoadsBackToTheSame) {
  YamlRoot root;
  // Texts that YAML would read as something else if they were printed without quotes.
  root.name = "null";
  root.settings = {{"size", "6"}, {"text", "a: \"b\"\n\\ # \x01 ü"}, {"empty", ""}, {"-", "~"}};
  root.rollout.max_response_tokens = 1'234'567'890'123;
  root.rollout.stop = {"\n", "[x]", "- a", "true", "...", "*a", "yes"};
  // Doubles that need all of their digits, or an exponent.
  root.rollout.betas = {0.1, 1e-300, 1.0 / 3};
  root.rollout.sampling.temperature = 0.1 + 0.2;
  std::string text = print_config(root);
  EXPECT_EQ(print_config(read_yaml(text)), text);
  YamlRoot again = read_yaml(text);
  EXPECT_EQ(again.name, root.name);
  EXPECT_EQ(again.settings, root.settings);
  EXPECT_EQ(again.rollout.stop, root.rollout.stop);
  EXPECT_EQ(again.rollout.betas, root.rollout.betas);
  EXPECT_EQ(again.rollout.sampling.temperature, root.rollout.sampling.temperature);
}

TEST(PrintConfig, IsReadable) {
  YamlRoot root;
  root.rollout.max_response_tokens = 4;
  EXPECT_EQ(
      print_config(root),
      "name: run\nmode: sync\nverbose: false\nsettings: {}\nrollout:\n  group_size: 8\n  "
      "max_response_tokens: 4\n"
      "  stop: [\"\\n\"]\n  betas: [0.9, 0.95]\n  sampling:\n    temperature: 1\n    top_k: -1\n");
}

TEST(DescribeOptions, ListsEveryKeyWithItsFacts) {
  auto sections = describe_options(YamlRoot{});
  ASSERT_EQ(sections.size(), 3u);
  EXPECT_EQ(sections[0].key, "");
  EXPECT_EQ(sections[1].key, "rollout");
  EXPECT_EQ(sections[2].key, "rollout.sampling");
  EXPECT_EQ(sections[2].help, "how tokens are drawn");
  const OptionDoc& group = sections[1].options[0];
  EXPECT_EQ(group.key, "rollout.group_size");
  EXPECT_EQ(group.type, "integer");
  EXPECT_EQ(group.value, "8");
  EXPECT_EQ(group.accepted, ">= 1");
  EXPECT_EQ(group.integer, 8);
  EXPECT_EQ(group.resume, Resume::kFixed);
  EXPECT_EQ(sections[0].options[2].resume, Resume::kMayChange);
  EXPECT_FALSE(sections[0].options[2].integer.has_value());
  EXPECT_TRUE(sections[1].options[1].required);
  EXPECT_EQ(sections[1].options[1].value, "0");  // required; what it holds is still told
  EXPECT_EQ(sections[0].options[1].accepted, "one of: sync, async");
}

TEST(YamlConfig, AnothersSwitchChoosesAValue) {
  const std::string minimal = kMinimal;
  ConfigKeys keys;
  EXPECT_EQ(read_yaml(minimal + "old: {async: {enable: true}}", {}, &keys).mode, Mode::kAsync);
  EXPECT_EQ(keys.notes(),
            std::vector<std::string>{"a.yaml:2: old.async.enable = true is read as mode = async"});
  // Off says nothing of what else it may be.
  EXPECT_EQ(read_yaml(minimal + "old: {async: {enable: false}}").mode, Mode::kSync);
  EXPECT_EQ(read_yaml(minimal + "mode: async\nold: {async: {enable: false}}", {}, &keys).mode,
            Mode::kAsync);
  EXPECT_EQ(keys.notes(),
            std::vector<std::string>{"a.yaml:3: old.async.enable = false leaves mode as it is"});
  EXPECT_EQ(read_yaml(minimal + "mode: async", {"old.async.enable=false"}).mode, Mode::kAsync);
  EXPECT_EQ(read_yaml(minimal + "old: {wait: false}").mode, Mode::kAsync);
  EXPECT_EQ(read_yaml(minimal + "old: {wait: true}", {"mode=async"}).mode, Mode::kAsync);
  EXPECT_EQ(error_of(minimal + "old: {wait: maybe}"),
            "a.yaml:2: old.wait is maybe; what is taken here: true, false. The key here is mode.");
  EXPECT_EQ(error_of(minimal + "mode: sync\nold: {wait: true}"),
            "a.yaml:3: old.wait = true and mode (at a.yaml:2) are two names of mode. Remove one of "
            "them.");
}

// A preset that sets two keys, one of them in a section, and leaves a third alone.
enum class Recipe { kNone, kSharp };
constexpr auto enum_names(Recipe) {
  return name_table<Recipe>({{Recipe::kNone, "none"}, {Recipe::kSharp, "sharp"}});
}
constexpr OptionInfo::Alias kAliases[] = {{"acute", "sharp"}};
constexpr OptionInfo::Stranger kStrangers[] = {{"sharpe", "It is a ratio of another trade."}};

struct Loss {
  Recipe name = Recipe::kNone;
  int64_t clip = 1, eps = 2;
  Sampling sampling;

  static Loss preset(Recipe recipe) {
    Loss loss;
    loss.name = recipe;
    if (recipe == Recipe::kSharp) loss.clip = 5, loss.sampling.temperature = 3;
    return loss;
  }
  static std::span<const std::string_view> preset_keys(Recipe) {
    static constexpr std::string_view kKeys[] = {"clip", "sampling.temperature"};
    return kKeys;
  }
  void visit(OptionVisitor& v) {
    v.preset("name", *this, name, {.help = "recipe", .strangers = kStrangers, .aliases = kAliases});
    v.field("clip", clip, {.help = "clip", .min = 0});
    v.field("eps", eps, {.help = "eps", .min = 0});
    v.section("sampling", sampling, "how");
  }
};

struct LossRoot {
  Loss loss;
  void visit(OptionVisitor& v) { v.section("loss", loss, "the loss"); }
};

TEST(Presets, ReplaceKeysOfLowerLayersOnly) {
  TemporaryDirectory folder;
  const auto base = folder.write(
      "base.yaml", "loss:\n  eps_clip: 7\n  eps: 9\n  sampling: {temperature: 2, top_k: 4}\n");
  const auto bind = [](const ConfigNode& root, ConfigKeys& keys) {
    LossRoot options;
    keys = bind_config(root, options, kForeign);
    return options.loss;
  };
  ConfigKeys keys;
  const std::vector<std::string> named = {"loss.name=sharp"};
  Loss loss = bind(load_config(base, named), keys);
  EXPECT_EQ(loss.clip, 5);
  EXPECT_EQ(loss.sampling.temperature, 3);
  EXPECT_EQ(loss.eps, 9) << "the preset does not set it";
  EXPECT_EQ(loss.sampling.top_k, 4);
  EXPECT_EQ(keys.notes(),
            (std::vector<std::string>{
                "override loss.name=sharp: loss.name sharp replaces loss.eps_clip (" +
                base.string() + ":2), loss.sampling.temperature (" + base.string() + ":4)"}));
  EXPECT_FALSE(keys.given("loss.clip"));
  EXPECT_EQ(keys.source("loss.name"), "command line");
  EXPECT_EQ(keys.source("loss.clip"), "preset sharp");
  EXPECT_EQ(keys.source("loss.eps"), base.string() + ":3");
  EXPECT_EQ(keys.source("loss.none"), "default");

  const std::vector<std::string> both = {"loss.clip=6", "loss.name=sharp"};
  loss = bind(load_config(base, both), keys);
  EXPECT_EQ(loss.clip, 6) << "of the layer of the name";
  EXPECT_EQ(loss.sampling.temperature, 3);

  // A file over the one that it extends, and an override over both.
  const auto top = folder.write("top.yaml", "extends: base.yaml\nloss: {name: sharp}\n");
  const std::vector<std::string> later = {"loss.sampling.temperature=4"};
  loss = bind(load_config(top, later), keys);
  EXPECT_EQ(loss.clip, 5);
  EXPECT_EQ(loss.sampling.temperature, 4);

  // The resolved config says the name and all values in one layer.
  LossRoot printed{loss}, again;
  const std::string text = print_config(printed);
  EXPECT_TRUE(bind_config(parse_config(text, "resolved.yaml", {}), again).notes().empty());
  EXPECT_EQ(print_config(again), text);
}

TEST(Choices, AreTakenInUpperCaseToo) {
  LossRoot options;
  bind_config(parse_config("loss: {name: SHARP}", "a.yaml", {}), options);
  EXPECT_EQ(options.loss.name, Recipe::kSharp);
}

TEST(Choices, AreKeptByTheirNameWhateverTheirSpelling) {
  LossRoot options;
  const ConfigKeys keys = bind_config(parse_config("loss: {name: Acute}", "a.yaml", {}), options);
  EXPECT_EQ(options.loss.name, Recipe::kSharp);
  EXPECT_EQ(options.loss.clip, 5) << "the preset's";
  EXPECT_EQ(keys.source("loss.clip"), "preset sharp");
  EXPECT_EQ(print_config(options).find("acute"), std::string::npos);
  const auto sections = describe_options(options);
  const OptionDoc& name = sections[0].options[0];
  EXPECT_EQ(name.accepted, "one of: none, sharp");
  ASSERT_EQ(name.aliases.size(), 1u);
  EXPECT_EQ(name.aliases[0].alias, "acute");
}

// Two sections, one in the other, and a list.
struct Inner {
  int64_t width = 0, depth = 0;
  void visit(OptionVisitor& v) {
    v.field("width", width, {});
    v.field("depth", depth, {.idle = idle_if(width == 0, "{width} is 0", {"width"})});
  }
};
struct Middle {
  int64_t rate = 0;
  std::string name;
  Inner inner;
  void visit(OptionVisitor& v) {
    v.field("rate", rate, {});
    v.field("name", name, {});
    v.section("inner", inner, "");
  }
};
struct IdleRoot {
  Middle middle;
  std::vector<Middle> items;
  void visit(OptionVisitor& v) {
    v.section(
        "middle", middle, "",
        idle_if(middle.rate == 0, "neither {middle.rate} nor another is given", {"middle.rate"}));
    v.list("items", items, "");
  }
};

TEST(DescribeOptions, SaysWhyNothingReadsAKey) {
  const auto idle = [](const IdleRoot& options) {
    std::map<std::string, Idle> by_key;
    size_t place = 0;
    for (const SectionDoc& section : describe_options(options))
      for (const OptionDoc& option : section.options) {
        EXPECT_EQ(option.place, place++) << option.key;
        by_key[option.key] = option.idle;
      }
    return by_key;
  };
  IdleRoot options;
  auto found = idle(options);
  EXPECT_FALSE(found.at("middle.rate")) << "it decides";
  EXPECT_EQ(found.at("middle.name").reason, "neither middle.rate nor another is given");
  EXPECT_EQ(found.at("middle.name").deciders, std::vector<std::string>{"middle.rate"});
  EXPECT_EQ(found.at("middle.inner.depth"), found.at("middle.name")) << "the outer reason first";
  EXPECT_EQ(found.at("items.NAME.inner.depth").reason, "items.NAME.inner.width is 0");

  options.middle.rate = 1;
  options.items.resize(2);
  options.items[0].name = "a";
  options.items[1].name = "b";
  options.items[1].inner.width = 3;
  found = idle(options);
  EXPECT_FALSE(found.at("middle.name"));
  EXPECT_EQ(found.at("middle.inner.depth").reason, "middle.inner.width is 0");
  EXPECT_EQ(found.at("items.a.inner.depth").deciders,
            std::vector<std::string>{"items.a.inner.width"});
  EXPECT_FALSE(found.at("items.b.inner.depth"));
}

TEST(Choices, ThatAreKnownFromElsewhereAreAnswered) {
  const auto error = [](const std::string& name) -> std::string {
    LossRoot options;
    try {
      bind_config(parse_config("loss: {name: " + name + "}", "a.yaml", {}), options);
    } catch (const UserError& refused) {
      return refused.what();
    }
    return "(no error)";
  };
  EXPECT_EQ(error("Sharpe"),
            "a.yaml:1: loss.name is Sharpe; it must be one of: none, sharp. It is a ratio of "
            "another trade.");
  EXPECT_EQ(error("sharpp"),
            "a.yaml:1: loss.name is sharpp; it must be one of: none, sharp. Try sharp.");
  EXPECT_EQ(error("blunt"), "a.yaml:1: loss.name is blunt; it must be one of: none, sharp.");
}

}  // namespace
}  // namespace tailrace
