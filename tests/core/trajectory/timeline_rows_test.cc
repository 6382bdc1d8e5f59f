#include "core/trajectory/timeline_rows.h"

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

std::vector<TimelineRow> one_of_each() {
  const BodyId sample{Lane::kTrain, {{.prompt = 12, .member = 3}, 1}};
  const BodyId held_out{Lane::kEval, {{.prompt = 1}, 2}};
  using enum TimelineWhat;
  return {
      {.what = kStart, .at = Time(5), .from = Time(5), .unix_seconds = 1712.5},
      {.what = kUp,
       .at = Time(6),
       .from = Time(6),
       .worker = "t",
       .role = Role::kTrainer,
       .slots = 1,
       .pool = "large",
       .cluster = "east",
       .host = "gpu-7.east"},
      {.what = kDown, .at = Time(6), .from = Time(6), .worker = "t", .end = "away"},
      {.what = kQuarantine, .at = Time(7), .from = Time(7), .worker = "r", .until = Time(9)},
      {.what = kWarmUp, .at = Time(8), .from = Time(6), .worker = "t", .end = "published"},
      {.what = kGenerate,
       .at = Time(20),
       .from = Time(10),
       .worker = "r\"0",
       .end = "truncated",
       .sample = sample,
       .busy = Time(10),
       .tokens = 14,
       .min_version = 3,
       .max_version = 4,
       .reward = 0.1},
      {.what = kGenerate,
       .at = Time(20),
       .from = Time(10),
       .worker = "r",
       .end = "lost",
       .sample = held_out,
       .lane = Lane::kEval,
       .busy = Time(10)},
      {.what = kVerify,
       .at = Time(21),
       .from = Time(20),
       .worker = "v",
       .end = "scored",
       .sample = sample,
       .busy = Time(1),
       .verify_attempt = 2,
       .reward = -1.0},
      {.what = kGenerate,
       .at = Time(30),
       .from = Time(10),
       .worker = "r",
       .leases = 7,
       .busy = Time(55)},
      {.what = kInstall,
       .at = Time(31),
       .from = Time(30),
       .worker = "r",
       .end = "installed",
       .number = 4},
      {.what = kFetch,
       .at = Time(31),
       .from = Time(27),
       .worker = "r",
       .number = 4,
       .until = Time(29)},
      {.what = kTrain, .at = Time(32), .from = Time(30), .worker = "t", .end = "lost", .number = 5},
      {.what = kSave, .at = Time(33), .from = Time(32), .worker = "t", .end = "saved", .number = 4},
      {.what = kStep,
       .at = Time(34),
       .from = Time(34),
       .number = 5,
       .trained = {.samples = 2,
                   .truncated = 1,
                   .tokens = deciles_of({3, 9}),
                   .staleness = deciles_of({0, 1})},
       .left_out = 3},
      {.what = kDiscarded,
       .at = Time(35),
       .from = Time(35),
       .end = "filtered",
       .samples = {{.tokens = 4, .staleness = 1, .truncated = true}, {}}},
  };
}

TEST(TimelineRows, EachRowComesBack) {
  for (const TimelineRow& row : one_of_each()) {
    const std::string line = format_timeline_row(row);
    const auto back = parse_timeline_row(line);
    ASSERT_TRUE(back) << line << "\n" << back.failure().message;
    EXPECT_EQ(back.value(), row) << line;
  }
}

TEST(TimelineRows, DecilesAreValuesThatWereThere) {
  EXPECT_EQ(deciles_of({7}), (Deciles{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}));
  std::vector<int64_t> values;
  for (int64_t i = 100; i >= 0; --i) values.push_back(i);
  EXPECT_EQ(deciles_of(values), (Deciles{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}));
}

// Each byte of each row, changed and cut: a Failure or a row, never a death.
TEST(TimelineRows, AlteredAndCutLinesAreRefused) {
  for (const TimelineRow& row : one_of_each()) {
    const std::string line = format_timeline_row(row);
    for (size_t i = 0; i < line.size(); ++i) {
      std::string altered = line;
      altered[i] = static_cast<char>(altered[i] ^ 0x11);
      const auto read = parse_timeline_row(altered);
      // Only a proof that is none any more promises nothing; then the fields must hold.
      if (read) {
        EXPECT_GE(i, line.rfind(",\"proof\"")) << altered;
      }
      (void)parse_timeline_row(line.substr(0, i));
    }
  }
  for (
      const char* line :
      {"[]", "{}", R"({"at_ns":1,"what":"nothing"})",
       R"({"at_ns":1,"what":"generate","from_ns":2})", R"({"at_ns":-1,"what":"start","unix":1})",
       R"({"at_ns":1,"what":"up","worker":"r","role":"cook","slots":1})",
       R"({"at_ns":1,"what":"up","worker":"r","role":"reward","slots":0})",
       R"({"at_ns":2,"what":"verify","from_ns":1,"sample":"prompt=1","verify":1,"end":"lost"})",
       R"({"at_ns":2,"what":"step","number":1,"samples":1,"truncated":0,"tokens":[2,1],"staleness":[0]})"})
    EXPECT_FALSE(parse_timeline_row(line)) << line;
}

TEST(TimelineRows, DamagedRowsAreNamedAndTheOthersAreRead) {
  TemporaryDirectory folder;
  std::string text;
  for (const TimelineRow& row : one_of_each()) text += format_timeline_row(row) + "\n";
  const size_t second = text.find('\n') + 1;
  text[second + 3] ^= 1;
  text += R"({"at_ns": 40, "what": "st)";  // the writer may be at it
  folder.write("timeline.jsonl", text);
  const auto file = read_timeline(folder / "timeline.jsonl");
  ASSERT_TRUE(file) << file.failure().message;
  EXPECT_EQ(file.value().rows.size(), one_of_each().size() - 1);
  EXPECT_EQ(file.value().num_damaged, 1);
  ASSERT_EQ(file.value().damaged.size(), 1u);
  EXPECT_NE(file.value().damaged[0].find("timeline.jsonl:2: the row was changed or damaged"),
            std::string::npos)
      << file.value().damaged[0];
  EXPECT_FALSE(read_timeline(folder / "none.jsonl"));
}

TEST(TimelineRows, OfALargeFileTheEndIsRead) {
  TemporaryDirectory folder;
  std::string text;
  for (const TimelineRow& row : one_of_each()) text += format_timeline_row(row) + "\n";
  folder.write("timeline.jsonl", text);
  const std::string last = format_timeline_row(one_of_each().back());
  const auto file = read_timeline(folder / "timeline.jsonl", std::ssize(last) + 20);
  ASSERT_TRUE(file);
  EXPECT_EQ(file.value().rows, (std::vector<TimelineRow>{one_of_each().back()}));
  EXPECT_EQ(file.value().skipped_bytes, std::ssize(text) - std::ssize(last) - 1);
  EXPECT_EQ(file.value().num_damaged, 0);
}

}  // namespace
}  // namespace tailrace
