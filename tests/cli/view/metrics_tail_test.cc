#include "cli/view/metrics_tail.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class MetricsTailTest : public testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream(file_, std::ios::app) << text; }
  static std::string line(int64_t step, double time = 0) {
    MetricsRow row;
    row.step = step;
    row.unix_seconds = time;
    return format_metrics_row(row) + "\n";
  }
  static std::vector<int64_t> steps(const std::vector<MetricsRow>& rows) {
    std::vector<int64_t> out;
    for (const MetricsRow& row : rows) out.push_back(row.step);
    return out;
  }

  TemporaryDirectory folder_;
  fs::path file_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsTailTest, GivesEachRowOnceAndOnlyWhenItIsComplete) {
  MetricsTail tail(file_, true);
  EXPECT_TRUE(tail.poll().empty());
  append(line(1) + line(2));
  EXPECT_EQ(steps(tail.poll()), (std::vector<int64_t>{1, 2}));
  const std::string third = line(3);
  append(third.substr(0, 5));
  EXPECT_TRUE(tail.poll().empty());
  append(third.substr(5));
  EXPECT_EQ(steps(tail.poll()), std::vector<int64_t>{3});
  EXPECT_TRUE(tail.poll().empty());
}

TEST_F(MetricsTailTest, LeavesOutWhatIsThereWhenARunGoesOn) {
  append(line(1));
  MetricsTail tail(file_, false);
  append(line(2));
  EXPECT_EQ(steps(tail.poll()), std::vector<int64_t>{2});
}

TEST_F(MetricsTailTest, FollowsAFileWhoseRowsWereTakenBack) {
  append(line(1) + line(2));
  MetricsTail tail(file_, true);
  tail.poll();
  fs::resize_file(file_, line(1).size());
  EXPECT_TRUE(tail.poll().empty());
  append(line(2, 1));
  EXPECT_EQ(steps(tail.poll()), std::vector<int64_t>{2});
}

TEST_F(MetricsTailTest, FollowsAFileThatTakesThePlaceOfThisOne) {
  append(line(1) + line(2));
  MetricsTail tail(file_, true);
  EXPECT_EQ(steps(tail.poll()), (std::vector<int64_t>{1, 2}));
  // Somebody takes a line out; the scheduler puts it back and goes on.
  const auto replace = [&](const std::string& text) {
    ASSERT_TRUE(write_file_atomic(file_, text));
  };
  replace(line(2));
  EXPECT_TRUE(tail.poll().empty());
  replace(line(1) + line(2) + line(3));
  EXPECT_EQ(steps(tail.poll()), std::vector<int64_t>{3});
  // It grew under another name.
  replace(line(10) + line(11) + line(12) + line(13));
  EXPECT_EQ(steps(tail.poll()), (std::vector<int64_t>{10, 11, 12, 13}));
  fs::remove(file_);
  EXPECT_TRUE(tail.poll().empty());
  append(line(14));
  EXPECT_EQ(steps(tail.poll()), std::vector<int64_t>{14});
}

// To open one would wait for its writer.
TEST_F(MetricsTailTest, APipeHasNoRows) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  MetricsTail tail(folder_ / "pipe", /*from_start=*/true);
  EXPECT_TRUE(tail.poll().empty());
}

}  // namespace
}  // namespace tailrace
