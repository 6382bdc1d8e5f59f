#include "bench/run/mode_run.h"

#include <chrono>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "bench/report/program.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

// A run of two steps of two seconds; a step has 100 sampled tokens, 10 of them too old.
ModeRun read_run(double loss_tokens) {
  TemporaryDirectory folder;
  std::string metrics, timeline;
  for (int64_t step = 1; step <= 2; ++step) {
    const MetricsRow row{.step = step,
                         .version = step - 1,
                         .values = {{"time/step", 2.0},
                                    {"perf/tokens_per_s", 50.0},
                                    {"staleness/masked_frac", 0.1},
                                    {"policy/loss_tokens", loss_tokens}}};
    metrics += format_metrics_row(row) + "\n";
  }
  for (const auto& [what, at] : {std::pair{TimelineWhat::kWarmUp, 1}, {TimelineWhat::kStep, 5}})
    timeline += format_timeline_row({.what = what, .at = std::chrono::seconds(at)}) + "\n";
  folder.write("metrics.jsonl", metrics);
  folder.write("timeline.jsonl", timeline);
  return read_mode_run(folder.path(), /*steps=*/2, /*samples=*/8);
}

TEST(ModeRun, CountsTheTokensThatTheLossIsMadeOf) {
  // All that was young enough, and without the groups that had no signal.
  EXPECT_DOUBLE_EQ(read_run(90).tokens_per_s(), 45);
  EXPECT_DOUBLE_EQ(read_run(40).tokens_per_s(), 20);
  EXPECT_DOUBLE_EQ(read_run(40).tokens, 200);
  EXPECT_DOUBLE_EQ(read_run(40).masked, 0.1);
  EXPECT_THROW(read_run(0), WrongResult);
}

}  // namespace
}  // namespace tailrace
