#include "core/config/config_document.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_config(text, "a.yaml", {}); });
}

TEST(LoadConfig, RefusesTomlByItsName) {
  TemporaryDirectory folder;
  const auto file = folder.write("rl.toml", "max_steps = 20\n\n[model]\nname = \"m\"\n");
  EXPECT_EQ(error_of([&] { load_config(file, {}); }),
            file.string() +
                ": a config is YAML, and this is TOML. Write a [section] as 'section:' "
                "with its keys indented below it, and 'key = value' as 'key: value'.");
}

TEST(ParseConfig, KeepsTheLineOfEachKey) {
  ConfigNode root = parse_config("a:\n  b: 1\n  c: [x, \"2\"]\n", "f.yaml", {});
  const ConfigNode* c = root.find("a")->find("c");
  EXPECT_EQ(c->place.text(), "f.yaml:3");
  EXPECT_EQ(c->items[0].text, "x");
  EXPECT_FALSE(c->items[0].quoted);
  EXPECT_TRUE(c->items[1].quoted);
}

TEST(ParseConfig, AnEmptyFileIsAnEmptyMap) {
  EXPECT_TRUE(parse_config("", "f", {}).entries.empty());
  EXPECT_TRUE(parse_config("# only a comment\n", "f", {}).entries.empty());
}

// As on the command line, beside the section, before or behind it.
TEST(ParseConfig, KeysWithDotsAtTheTopStandForSections) {
  const ConfigNode root = parse_config("a.b.c: 1\na:\n  d: 2\n  b: {e: 3}\ng:\ng.h: 5\n", "f.yaml",
                                       std::vector<std::string>{"a.b.c=4"});
  const ConfigNode* a = root.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(a->find("d")->text, "2");
  EXPECT_EQ(a->find("b")->find("e")->text, "3");
  EXPECT_EQ(a->find("b")->find("c")->text, "4");  // an override wins
  EXPECT_EQ(root.find("g")->find("h")->place.text(), "f.yaml:6");
  EXPECT_EQ(parse_config("l: [{name: x}]\nl.x.y: 3\n", "f", {}).find("l")->items[0].find("y")->text,
            "3");
  EXPECT_EQ(parse_error("a: {b: 1}\na.b: 2\n"),
            "a.yaml:2: the key has a value already, from 'a.yaml:1'. Remove one of them.");
  EXPECT_EQ(parse_error("a..b: 2\n"), "a.yaml:1: the key has an empty part");
  std::string deep = "a";
  for (int i = 0; i < 40; ++i) deep += ".a";
  EXPECT_EQ(parse_error(deep + ": 2\n"), "a.yaml:1: the key has more than 32 parts");
}

TEST(ParseConfig, RefusesWhatIsNotPlain) {
  EXPECT_EQ(parse_error("a: 1\nb: 2\na: 3\n"),
            "a.yaml:3: a is given twice (first at a.yaml:1). Remove one of them.");
  EXPECT_EQ(parse_error("a: !int 1\n"),
            "a.yaml:1: the tag !int is not supported. Write a plain value.");
  EXPECT_EQ(parse_error("- 1\n"),
            "a.yaml:1: a config is a map of sections (key: value); found a list");
  EXPECT_EQ(parse_error("a: 1\n---\nb: 2\n"),
            "a.yaml: holds 2 YAML documents; it must be one. Remove the lines '---'.");
  EXPECT_EQ(parse_error("x: &x {a: 1}\ny:\n  <<: *x\n"),
            "a.yaml:3: merge keys (<<) are not supported. Use extends: FILE, or repeat the keys.");
  EXPECT_EQ(parse_error("? [a]\n: 1\n"), "a.yaml:1: a key must be a plain word");
  EXPECT_EQ(parse_error("extends: b.yaml\n"), "a.yaml:1: extends works in files only");
}

TEST(ParseConfig, NamesTheLineOfASyntaxError) {
  EXPECT_EQ(parse_error("a: 1\nb: [1, 2\nc: 3\n").substr(0, 24), "a.yaml:3: not valid YAML");
  EXPECT_EQ(parse_error("a: *nowhere\n").substr(0, 24), "a.yaml:1: not valid YAML");
  EXPECT_EQ(parse_error("a: 1\nb:\n\tc: 1\n\td: 2\n"),
            "a.yaml:3: the line begins with a tab; YAML indents with blanks. Replace the tab.");
}

TEST(ParseConfig, SurvivesDeepAndWideInput) {
  EXPECT_NE(parse_error(std::string(100'000, '[')), "(no error)");
  std::string bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += (j ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(parse_error(bomb), "a.yaml: more than 10000 values");
}

TEST(ParseConfig, RefusesAnAliasInsideOfWhatItNames) {
  const std::string deep =
      ": nested more than 32 deep; an alias (*name) may stand inside of what it names";
  EXPECT_EQ(parse_error("a: &a [1, *a]\n"), "a.yaml:1" + deep);
  EXPECT_EQ(parse_error("b: 1\na: &a {b: *a}\n"), "a.yaml:2" + deep);
  EXPECT_EQ(parse_error("a: " + std::string(31, '[') + std::string(31, ']')), "(no error)");
}

TEST(ParseConfig, SurvivesCutInput) {
  std::string text =
      "run: {name: \"x\\n\", seed: 3}\nlist:\n  - &a 1\n  - *a\nblock: |\n  text\nend: [1, {b: "
      "c}]\n";
  for (size_t size = 0; size <= text.size(); ++size) {
    for (char change : {'\0', '\t', '{', ':', '\xff'}) {
      std::string cut = text.substr(0, size) + change;
      parse_error(cut);  // must come back, with or without an error
    }
  }
}

TEST(LoadConfig, ExtendsRelativeToTheFileAndOverridesKeyByKey) {
  TemporaryDirectory folder;
  folder.write("base/one.yaml", "a: {x: 1, y: 2, list: [1, 2]}\nb: 5\n");
  folder.write("base/two.yaml", "extends: one.yaml\na: {y: 3}\n");
  auto path = folder.write("top.yaml", "extends: [base/two.yaml]\na:\n  list: [9]\nc: 1\n");
  std::vector<std::string> overrides = {"a.x=7", "d.e.f=[1, 2]"};
  ConfigNode root = load_config(path, overrides);
  EXPECT_EQ(root.find("a")->find("x")->text, "7");
  EXPECT_EQ(root.find("a")->find("x")->place.text(), "override a.x=7");
  EXPECT_EQ(root.find("a")->find("y")->text, "3");
  EXPECT_EQ(root.find("a")->find("y")->place.text(), (folder / "base/two.yaml").string() + ":2");
  EXPECT_EQ(root.find("a")->find("list")->items.size(), 1u);
  EXPECT_EQ(root.find("b")->text, "5");
  EXPECT_EQ(root.find("d")->find("e")->find("f")->items.size(), 2u);
  EXPECT_EQ(root.find("extends"), nullptr);
}

TEST(LoadConfig, AMapChangesTheSectionsOfAListThatItNames) {
  TemporaryDirectory folder;
  folder.write("base.yaml", "a:\n  - {name: one, x: 1, y: 2}\n  - {name: two, x: 3}\n");
  const auto path = folder.write("top.yaml", "extends: base.yaml\na: {two: {x: 4}}\n");
  const ConfigNode root = load_config(path, std::vector<std::string>{"a.one.x=5"});
  const ConfigNode& list = *root.find("a");
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(list.items[0].find("x")->text, "5");
  EXPECT_EQ(list.items[0].find("y")->text, "2");
  EXPECT_EQ(list.items[1].find("x")->text, "4");
  EXPECT_EQ(list.items[1].find("x")->place.text(), path.string() + ":2");
}

TEST(LoadConfig, NumbersForKeysChangeTheItemsOfAPlainList) {
  TemporaryDirectory folder;
  const auto path =
      folder.write("a.yaml", "a: [one, two, three]\nb:\n  - {name: x, list: [1, 2]}\n");
  const ConfigNode root = load_config(path, std::vector<std::string>{"a.1=2", "b.x.list.0=9"});
  const ConfigNode& list = *root.find("a");
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_EQ(list.items[0].text, "one");
  EXPECT_EQ(list.items[1].text, "2");
  EXPECT_EQ(list.items[2].text, "three");
  EXPECT_EQ(root.find("b")->items[0].find("list")->items[0].text, "9");
  EXPECT_EQ(error_of([&] { load_config(path, std::vector<std::string>{"a.3=x"}); }),
            "override a.3=x: the list at " + path.string() + ":1 has 3 items, counted from 0");
}

TEST(LoadConfig, RefusesARing) {
  TemporaryDirectory folder;
  auto a = folder.write("a.yaml", "extends: b.yaml\n");
  folder.write("b.yaml", "extends: a.yaml\n");
  std::string b = (folder / "b.yaml").string();
  EXPECT_EQ(error_of([&] { load_config(a, {}); }),
            a.string() + ": extends itself, through " + b + ". Remove one of the extends lines.");
  auto self = folder.write("self.yaml", "extends: self.yaml\n");
  EXPECT_EQ(error_of([&] { load_config(self, {}); }),
            self.string() +
                ": extends itself, through its own extends. Remove one of the extends lines.");
}

TEST(LoadConfig, TwoChildrenMayShareAParent) {
  TemporaryDirectory folder;
  folder.write("base.yaml", "a: 1\n");
  folder.write("x.yaml", "extends: base.yaml\nb: 2\n");
  folder.write("y.yaml", "extends: base.yaml\nb: 3\n");
  ConfigNode root = load_config(folder.write("top.yaml", "extends: [x.yaml, y.yaml]\n"), {});
  EXPECT_EQ(root.find("b")->text, "3");
}

TEST(LoadConfig, NamesAMissingFile) {
  EXPECT_EQ(
      error_of([] { load_config("no/such.yaml", {}); }),
      "cannot open no/such.yaml: No such file or directory; name a YAML file by its path, such "
      "as configs/quickstart.yaml");
  TemporaryDirectory folder;
  auto path = folder.write("a.yaml", "b: 1\nextends: [gone.yaml]\n");
  EXPECT_EQ(error_of([&] { load_config(path, {}); }),
            path.string() + ":2: extends: cannot open " + (folder / "gone.yaml").string() +
                ": No such file or directory; correct the "
                "path, which begins at the folder of its "
                "file");
  EXPECT_EQ(error_of([&] { load_config(folder / "a.yml", {}); }),
            "cannot open " + (folder / "a.yml").string() +
                ": No such file or directory; the nearest is " + path.string());
}

TEST(Overrides, GiveAKeyOnce) {
  auto message = [](std::vector<std::string> overrides) {
    return error_of([&] { parse_config("a: {b: 1}\n", "a.yaml", overrides); });
  };
  EXPECT_EQ(message({"a.b=2", "a.c=3", "a={d: 4}"}), "(no error)");
  EXPECT_EQ(message({"a.b=2", "a.b=3"}),
            "override a.b=3: the key has a value already, from 'override a.b=2'. Remove one of "
            "them.");
  EXPECT_EQ(message({"a.b=2", "a={b: 2}"}).substr(0, 43),
            "override a={b: 2}: the key has a value alre");
}

TEST(Overrides, AreRefusedWhenTheyAreNotKeyAndValue) {
  auto message = [](std::string text) {
    return error_of([&] { parse_config("a: 1\n", "a.yaml", std::vector<std::string>{text}); });
  };
  EXPECT_EQ(message("rollout"),
            "override rollout: an override is written section.key=value, for example "
            "rollout.group_size=8");
  EXPECT_EQ(
      message("=3"),
      "override =3: an override is written section.key=value, for example rollout.group_size=8");
  EXPECT_EQ(message("a..b=3"), "override a..b=3: the key has an empty part");
  EXPECT_EQ(message("a=[1").substr(0, 29), "override a=[1: not valid YAML");
}

}  // namespace
}  // namespace tailrace
