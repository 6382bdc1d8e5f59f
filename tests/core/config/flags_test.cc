#include "core/config/flags.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

enum class Pigment : uint8_t { kRed, kGreen };
constexpr auto enum_names(Pigment) {
  using enum Pigment;
  return name_table<Pigment>({{kRed, "red"}, {kGreen, "green"}});
}

// A program of one command that has an option of each kind.
struct Paint {
  bool wet = false, ran = false;
  int coats = 1;
  int64_t area = 0;
  uint64_t seed = 7;
  double thinner = 0.5;
  std::string name, brush = "wide";
  std::optional<int64_t> limit;
  std::optional<Pigment> second;
  Pigment colour = Pigment::kRed;
  std::vector<int64_t> sizes = {1, 2};
  std::vector<std::string> notes, rest;
  bool name_given = false;

  int run(std::vector<const char*> words) {
    Command program("paint", "Paints.");
    program.version("paint 3");
    Command& wall = program.command("wall", "Paint a wall");
    wall.option("name", name, {.help = "whose wall"});
    wall.option("--wet", wet, {.help = "paint it wet"});
    wall.option("--coats", coats, {.help = "of paint", .min = 1, .max = 9});
    wall.option("--area", area, {.help = "in metres"});
    wall.option("--seed", seed, {});
    wall.option("--thinner", thinner, {.help = "share", .min = 0.25, .max = 1, .or_zero = true});
    wall.option("--brush", brush, {.one_of = {"wide", "fine"}});
    wall.option("--limit", limit, {.min = -5, .max = 5});
    wall.option("--colour", colour, {.help = "of it"});
    wall.option("--second", second, {});
    wall.option("--sizes", sizes, {.max = 100});
    wall.option("--note", notes, {.needs = "--wet"});
    wall.option("--dry", dry, {.excludes = {"--wet"}});
    wall.action([&] {
      ran = true;
      name_given = wall.given("name");
      return 5;
    });
    Command& other = program.command("ask", "Ask somebody");
    other.take_all(rest);
    other.action([] { return 6; });
    Command& shop = program.command("shop", "What there is to buy");
    Command& order = shop.command("order", "Order some");
    order.option("--coats", coats, {.help = "of paint", .min = 1, .max = 9});
    order.action([] { return 7; });
    Command& brushes = program.command("brush", "Clean the brushes");
    brushes.option("--coats", coats, {.help = "of paint", .min = 1, .max = 9});
    brushes.action([] { return 8; });
    brushes.command("dry", "Hang them up").action([] { return 9; });
    brushes.group("For painters");
    program.moved("buy", "shop order");
    program.moved("mend", "wall", [](std::vector<std::string> words_behind) {
      words_behind.insert(words_behind.begin(), "--wet");
      return words_behind;
    });
    words.insert(words.begin(), "paint");
    return program.run(static_cast<int>(words.size()), words.data());
  }
  bool dry = false;
};

std::string refused(std::vector<const char*> words) {
  Paint paint;
  try {
    paint.run(std::move(words));
  } catch (const UserError& error) {
    return error.what();
  }
  return paint.ran ? "it ran" : "it did nothing";
}

// People who are used to flags are shown the other form.
TEST(Flags, ThatAreKeysOfAConfigAreWrittenWithoutDashes) {
  const auto run = [](std::vector<const char*> words) -> std::string {
    Command program("paint", "Paints.");
    std::vector<std::string> settings;
    bool dry = false;
    Command& wall = program.command("wall", "Paint a wall");
    wall.option("settings", settings, {.settings = true});
    wall.option("--dry-run", dry, {});
    wall.action([] { return 5; });
    program.command("ask", "Ask somebody").action([] { return 6; });
    words.insert(words.begin(), "paint");
    try {
      return std::to_string(program.run(static_cast<int>(words.size()), words.data()));
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const std::string told =
      "there is no option --rate. A key of a config is written without dashes: rate=";
  EXPECT_EQ(run({"wall", "--rate", "1e-5"}), told + "1e-5");
  EXPECT_EQ(run({"wall", "a.yaml", "--rate=1e-5"}), told + "1e-5");
  EXPECT_EQ(run({"wall", "--rate", "--dry-run"}), told + "VALUE");
  EXPECT_EQ(run({"wall", "rate=1e-5"}), "5");
  EXPECT_NE(run({"wall", "--dryrun"}).find("not expected: --dryrun"), std::string::npos);
  EXPECT_NE(run({"ask", "--rate", "1"}).find("not expected"), std::string::npos);
}

TEST(Flags, ReadEachKindOfVariable) {
  Paint paint;
  EXPECT_EQ(paint.run({"wall",    "mine", "--wet",     "--coats", "3",        "--area=-0",
                       "--seed",  "12",   "--thinner", "0",       "--brush",  "fine",
                       "--limit", "-5",   "--colour",  "green",   "--second", "red",
                       "--sizes", "3,4",  "5",         "--note",  "a,b",      "c"}),
            5);
  EXPECT_TRUE(paint.ran && paint.wet && paint.name_given);
  EXPECT_EQ(paint.name, "mine");
  EXPECT_EQ(paint.coats, 3);
  EXPECT_EQ(paint.area, 0);
  EXPECT_EQ(paint.seed, 12u);
  EXPECT_EQ(paint.thinner, 0);
  EXPECT_EQ(paint.brush, "fine");
  EXPECT_EQ(paint.limit, -5);
  EXPECT_EQ(paint.colour, Pigment::kGreen);
  EXPECT_EQ(paint.second, Pigment::kRed);
  EXPECT_EQ(paint.sizes, (std::vector<int64_t>{3, 4, 5}));
  // A text may have commas.
  EXPECT_EQ(paint.notes, (std::vector<std::string>{"a,b", "c"}));
}

TEST(Flags, WhatIsNotGivenKeepsItsValue) {
  Paint paint;
  EXPECT_EQ(paint.run({"wall"}), 5);
  EXPECT_FALSE(paint.name_given);
  EXPECT_EQ(paint.coats, 1);
  EXPECT_FALSE(paint.limit);
  EXPECT_FALSE(paint.second);
  EXPECT_EQ(paint.sizes, (std::vector<int64_t>{1, 2}));
}

TEST(Flags, RefuseWhatIsNotListedAndSayWhy) {
  const std::string help = "\n       Run 'paint wall --help'.";
  const auto number = [&](const char* option, const char* word) {
    const std::string message = refused({"wall", option, word});
    EXPECT_TRUE(message.ends_with(help)) << message;
    return message.substr(0, message.find('\n'));
  };
  EXPECT_EQ(number("--coats", "10"), "--coats is 10; it must be an integer from 1 to 9");
  EXPECT_EQ(number("--coats", "0"), "--coats is 0; it must be an integer from 1 to 9");
  EXPECT_EQ(number("--coats", "two"), "--coats is two; it must be an integer from 1 to 9");
  EXPECT_EQ(number("--coats", "1.5"), "--coats is 1.5; it must be an integer from 1 to 9");
  EXPECT_EQ(number("--coats", ""), "--coats is ; it must be an integer from 1 to 9");
  EXPECT_EQ(number("--area", "-1"),
            "--area is -1; it must be an integer from 0 to 9007199254740991");
  EXPECT_EQ(number("--area", "99999999999999999999"),
            "--area is 99999999999999999999; it must be an integer from 0 to 9007199254740991");
  EXPECT_EQ(number("--seed", "9007199254740992"),
            "--seed is 9007199254740992; it must be an integer from 0 to 9007199254740991");
  EXPECT_EQ(number("--thinner", "0.1"),
            "--thinner is 0.1; it must be a number from 0.25 to 1, or 0");
  EXPECT_EQ(number("--thinner", "nan"),
            "--thinner is nan; it must be a number from 0.25 to 1, or 0");
  EXPECT_EQ(number("--sizes", "3,x"), "--sizes is x; it must be an integer from 0 to 100");
  EXPECT_EQ(number("--brush", "broad"), "--brush is broad; it must be one of: wide, fine");
  EXPECT_EQ(number("--colour", "blue"), "--colour is blue; it must be one of: red, green");
  EXPECT_EQ(number("--second", "blue"), "--second is blue; it must be one of: red, green");
  EXPECT_NE(number("--note", "x").find("--wet"), std::string::npos);
  EXPECT_NE(number("--unknown", "x").find("--unknown"), std::string::npos);
  EXPECT_TRUE(refused({"wall", "mine", "--note", "--wet"})
                  .starts_with("--note wants a value, and --wet is an option."));
  EXPECT_NE(refused({"wall", "--dry", "--wet"}).find("excludes"), std::string::npos);
  EXPECT_NE(refused({"wall", "--coats", "1", "--coats", "2"}).find("--coats"), std::string::npos);
  EXPECT_TRUE(refused({}).ends_with("\n       Run 'paint --help'."));
  EXPECT_TRUE(refused({"wal"}).starts_with("there is no command 'wal'; did you mean 'wall'?"));
}

TEST(Flags, ACommandMayHaveCommandsOfItsOwn) {
  Paint paint;
  EXPECT_EQ(paint.run({"shop", "order", "--coats", "3"}), 7);
  EXPECT_EQ(paint.coats, 3);
  EXPECT_TRUE(
      refused({"shop", "oder"}).starts_with("there is no command 'oder'; did you mean 'order'?"))
      << refused({"shop", "oder"});
  EXPECT_TRUE(
      refused({"shop", "order", "--coats", "0"}).ends_with("Run 'paint shop order --help'."));
  EXPECT_TRUE(refused({"shop"}).ends_with("Run 'paint shop --help'.")) << refused({"shop"});
}

TEST(Flags, ACommandThatActsMayHaveCommandsToo) {
  EXPECT_EQ(Paint().run({"brush"}), 8);
  EXPECT_EQ(Paint().run({"brush", "--coats", "2"}), 8);
  EXPECT_EQ(Paint().run({"brush", "dry"}), 9);
  EXPECT_TRUE(refused({"brush", "dyr"}).ends_with("Run 'paint brush --help'."))
      << refused({"brush", "dyr"});
}

TEST(Flags, AnOldNameTellsTheNewCommandLine) {
  EXPECT_EQ(refused({"buy", "--coats", "3"}),
            "'paint buy' is 'paint shop order' now: paint shop order --coats 3");
  EXPECT_EQ(refused({"buy"}), "'paint buy' is 'paint shop order' now: paint shop order");
  EXPECT_EQ(refused({"buy", "--help", "two words", "it's", "", "*"}),
            "'paint buy' is 'paint shop order' now: paint shop order --help 'two words' "
            "'it'\\''s' '' '*'");
  EXPECT_EQ(refused({"mend", "mine"}), "'paint mend' is 'paint wall' now: paint wall --wet mine");
  EXPECT_TRUE(
      refused({"buyy"}).starts_with("there is no command 'buyy'; did you mean 'shop order'?"))
      << refused({"buyy"});
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Paint().run({"--help"}), 0);
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(help.find("buy "), std::string::npos) << help;
  EXPECT_LT(help.find("For painters:"), help.find("Clean the brushes")) << help;
}

TEST(Flags, WordsOfAnotherProgramAreLeftAlone) {
  Paint paint;
  EXPECT_EQ(paint.run({"ask", "her", "--help", "--coats", "x"}), 6);
  EXPECT_EQ(paint.rest, (std::vector<std::string>{"her", "--help", "--coats", "x"}));
}

TEST(Flags, HelpTellsValuesBoundsAndDefaults) {
  ::testing::internal::CaptureStdout();
  Paint paint;
  EXPECT_EQ(paint.run({"wall", "--help"}), 0);
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_FALSE(paint.ran);
  for (const char* text : {"Paint a wall", "--coats INT=1", "of paint (from 1 to 9)", "in metres",
                           "--thinner NUMBER=0.5", "share (from 0.25 to 1, or 0)",
                           "--brush wide|fine=wide", "--colour red|green=red", "--second red|green",
                           "--limit INT", "(from -5 to 5)", "--sizes INT=1,2 ..."})
    EXPECT_NE(help.find(text), std::string::npos) << text << "\n" << help;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(paint.run({"--version"}), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "paint 3\n");
}

}  // namespace
}  // namespace tailrace
