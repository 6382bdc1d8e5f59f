#include "core/base/metrics.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

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
  EXPECT_EQ(read_file(folder / "metrics.jsonl").value(),
            "{\"step\":0,\"version\":0,\"time\":1000.5,\"reward/mean\":0.1}\n"
            "{\"step\":1,\"version\":1,\"time\":1001.5,\"reward/mean\":null}\n");
  auto rows = read_metrics(folder / "metrics.jsonl");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows.value().size(), 2u);
  EXPECT_EQ(*rows.value()[0].find("reward/mean"), 0.1);
  EXPECT_EQ(rows.value()[1].step, 1);
  EXPECT_TRUE(std::isnan(*rows.value()[1].find("reward/mean")));
  EXPECT_EQ(rows.value()[0].find("reward/max"), nullptr);
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
  EXPECT_EQ(message("{\"step\":1}\nhello\n"), path + ":2: not a JSON object");
  EXPECT_EQ(message("{\"step\":1.5}\n"), path + ":1: step is not an integer");
  EXPECT_EQ(message("{\"step\":1,\"a\":[]}\n"), path + ":1: a is not a number");
}

}  // namespace
}  // namespace tailrace
