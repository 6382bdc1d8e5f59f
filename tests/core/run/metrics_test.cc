#include "core/run/metrics.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/json_file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

MetricsRow row(int64_t step, double reward) {
  return {.step = step,
          .version = step,
          .unix_seconds = 1000.5 + static_cast<double>(step),
          .values = {{"reward/mean", reward}}};
}

TEST(MetricsWriter, WritesRowsThatReadBack) {
  TemporaryDirectory folder;
  auto writer = MetricsWriter::open(folder / "metrics.jsonl", 0, 1000);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer.value().write(row(0, 0.1)));
  ASSERT_TRUE(writer.value().write(row(1, std::numeric_limits<double>::quiet_NaN())));
  const auto proved = [](std::string object) { return to_proved_row(std::move(object)) + "\n"; };
  EXPECT_EQ(read_file(folder / "metrics.jsonl").value(),
            proved("{\"step\":0,\"version\":0,\"time\":1000.5,\"reward/mean\":0.1}") +
                proved("{\"step\":1,\"version\":1,\"time\":1001.5,\"reward/mean\":null}"));
  auto rows = read_metrics(folder / "metrics.jsonl");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows.value().size(), 2u);
  EXPECT_EQ(*rows.value()[0].find("reward/mean"), 0.1);
  EXPECT_EQ(rows.value()[1].step, 1);
  EXPECT_TRUE(std::isnan(*rows.value()[1].find("reward/mean")));
  EXPECT_EQ(rows.value()[0].find("reward/max"), nullptr);
}

// Every bit of the second row, and of the end of the first. (A last line without its end is what a
// crash leaves.)
TEST(MetricsWriter, AFlippedBitIsNoticed) {
  TemporaryDirectory folder;
  const auto path = folder / "metrics.jsonl";
  {
    auto writer = MetricsWriter::open(path, 0, 1000);
    ASSERT_TRUE(writer);
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(writer.value().write(row(step, 0.125)));
  }
  const std::string bytes = read_file(path).value();
  for (size_t bit = 8 * bytes.find("\n"); bit < 8 * (bytes.size() - 1); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto rows = read_metrics(folder.write("flipped", flipped));
    EXPECT_FALSE(rows) << "bit " << bit << " of " << bytes;
  }
}

TEST(MetricsWriter, ALaunchThatContinuesForgetsTheStepsItWillDoAgain) {
  TemporaryDirectory folder;
  {
    auto writer = MetricsWriter::open(folder / "metrics.jsonl", 0, 1000);
    MetricsRow supervised = row(300, 0);
    supervised.version = -1;
    ASSERT_TRUE(writer.value().write(supervised));
    for (int step = 0; step < 5; ++step) ASSERT_TRUE(writer.value().write(row(step, step)));
  }
  ASSERT_TRUE(AppendFile::open(folder / "metrics.jsonl").value().append("{\"step\":5,\"ver"));
  auto writer = MetricsWriter::open(folder / "metrics.jsonl", 3, 2000);
  ASSERT_TRUE(writer) << writer.failure().message;
  ASSERT_TRUE(writer.value().write(row(3, 33)));
  auto rows = read_metrics(folder / "metrics.jsonl");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows.value().size(), 5u);
  EXPECT_EQ(rows.value()[0].step, 300);
  EXPECT_EQ(rows.value()[3].step, 2);
  EXPECT_EQ(*rows.value()[4].find("reward/mean"), 33);
}

// Step 3 published version 3, whose evaluation is done again with what rests on it.
TEST(MetricsWriter, WhatIsRemovedGoesByTheVersionThatARowIsAbout) {
  TemporaryDirectory folder;
  {
    auto writer = MetricsWriter::open(folder / "metrics.jsonl", 0, 1000);
    for (int64_t step = 2; step <= 4; ++step) {
      MetricsRow trained = row(step, 0.5);
      trained.version = step - 1;
      ASSERT_TRUE(writer.value().write(trained));
      ASSERT_TRUE(writer.value().write(row(step, 0.25)));
    }
  }
  auto writer = MetricsWriter::open(folder / "metrics.jsonl", 3, 2000);
  ASSERT_TRUE(writer) << writer.failure().message;
  const auto rows = read_metrics(folder / "metrics.jsonl");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows.value().size(), 3u);
  EXPECT_EQ(rows.value()[2].step, 3);
  EXPECT_EQ(rows.value()[2].version, 2);
  // Its scalars are of a step that TensorBoard drops, and are there again.
  const auto events = read_events(folder / "events.out.tfevents.0000002000.tailrace");
  ASSERT_TRUE(events);
  ASSERT_EQ(events.value().size(), 3u);
  EXPECT_EQ(events.value()[1].step, 3) << "from here on";
  EXPECT_EQ(events.value()[2].step, 3);
  EXPECT_EQ(events.value()[2].values[0].second, 0.5f);
}

std::vector<int64_t> steps_in(const std::filesystem::path& path) {
  std::vector<int64_t> steps;
  const auto rows = read_metrics(path);
  EXPECT_TRUE(rows) << rows.failure().message;
  if (!rows) return steps;
  for (const MetricsRow& row : rows.value()) steps.push_back(row.step);
  return steps;
}

TEST(MetricsWriter, PutsItsRowsBackWhereItsFileWasReplacedOrRemoved) {
  using Kept = MetricsWriter::Kept;
  TemporaryDirectory folder;
  const auto path = folder / "metrics.jsonl";
  auto opened = MetricsWriter::open(path, 0, 1000);
  ASSERT_TRUE(opened);
  MetricsWriter& writer = opened.value();
  ASSERT_TRUE(writer.write(row(0, 0.5)));
  EXPECT_EQ(writer.keep().value(), Kept::kWhole);
  // A copy is made, a row comes, and the copy takes the name.
  const std::string copy = read_file(path).value();
  ASSERT_TRUE(writer.write(row(1, 0.5)));
  ASSERT_TRUE(write_file_atomic(path, copy));
  EXPECT_EQ(writer.keep().value(), Kept::kPutBack);
  ASSERT_TRUE(writer.write(row(2, 0.5)));
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0, 1, 2}));
  std::filesystem::remove(path);
  EXPECT_EQ(writer.keep().value(), Kept::kPutBack);
  EXPECT_EQ(writer.keep().value(), Kept::kWhole);
  // Nothing can take the place of a folder: rows wait in the file that has no name.
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_FALSE(writer.keep());
  ASSERT_TRUE(writer.write(row(3, 0.5)));
  std::filesystem::remove(path);
  EXPECT_EQ(writer.keep().value(), Kept::kPutBack);
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(MetricsWriter, SaysThatItsFileWasCut) {
  using Kept = MetricsWriter::Kept;
  TemporaryDirectory folder;
  const auto path = folder / "metrics.jsonl";
  auto opened = MetricsWriter::open(path, 0, 1000);
  ASSERT_TRUE(opened);
  MetricsWriter& writer = opened.value();
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(writer.write(row(step, 0.5)));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  EXPECT_EQ(writer.keep().value(), Kept::kCut);
  EXPECT_EQ(writer.keep().value(), Kept::kWhole);
  ASSERT_TRUE(writer.write(row(3, 0.5)));
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0, 1, 3}));
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(writer.keep().value(), Kept::kCut);
  ASSERT_TRUE(writer.write(row(4, 0.5)));
  EXPECT_EQ(steps_in(path), std::vector<int64_t>{4});
}

TEST(MetricsWriter, AFullDiskIsAFailure) {
  TemporaryDirectory folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  auto writer = MetricsWriter::open(folder / "metrics.jsonl", 0, 1000);
  ASSERT_TRUE(writer) << writer.failure().message;
  auto written = writer.value().write(row(0, 1));
  ASSERT_FALSE(written);
  EXPECT_NE(written.failure().message.find("No space left on device"), std::string::npos);
}

TEST(ReadMetrics, IgnoresALineThatIsBeingWritten) {
  TemporaryDirectory folder;
  auto rows = read_metrics(folder.write("m", "{\"step\":1,\"a\":2}\n{\"step\":2,\"a\""));
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows.value().size(), 1u);
}

TEST(ReadMetrics, NamesAMalformedLine) {
  TemporaryDirectory folder;
  auto message = [&](std::string_view text) {
    return read_metrics(folder.write("m", text)).failure().message;
  };
  std::string path = (folder / "m").string();
  const std::string advice = ". Remove the line to go on without its row";
  EXPECT_EQ(message("{\"step\":1}\nhello\n"), path + ":2: not a JSON object" + advice);
  EXPECT_EQ(message("{\"step\":1.5}\n"), path + ":1: step is not an integer that fits" + advice);
  EXPECT_EQ(message("{\"step\":9999999999999999999}\n"),
            path + ":1: step is not an integer that fits" + advice);
  EXPECT_EQ(message("{\"step\":1,\"a\":[]}\n"), path + ":1: a is not a number" + advice);
}

}  // namespace
}  // namespace tailrace
