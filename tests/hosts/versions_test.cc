// An asynchronous run that samples in another cluster alone, behind a slow link: what its weights
// take, and what a person sees of that.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/run/metrics.h"
#include "core/trajectory/timeline_rows.h"
#include "tests/hosts/remote_fixture.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

class RemoteVersions : public RemoteTest {
 protected:
  static constexpr int64_t kTrainedSteps = 20;

  // The names below a heading of docs/metrics.md.
  static std::set<std::string> names_on_page(const std::string& heading) {
    const std::string page = read_file(TAILRACE_SOURCE_DIR "/docs/metrics.md").value();
    const size_t begin = page.find("\n## " + heading + "\n"), end = page.find("\n## ", begin + 1);
    EXPECT_NE(begin, std::string::npos) << heading;
    std::set<std::string> names;
    for (size_t at = begin; (at = page.find("\n| `", at + 1)) < end;)
      names.insert(page.substr(at + 4, page.find('`', at + 4) - at - 4));
    return names;
  }
};

TEST_F(RemoteVersions, AnAsynchronousRunLearnsFromWeightsThatComeAsDeltas) {
  connect({.rate_mbit = 20, .delay = 10ms});
  HostProcess& run =
      launch({"run.steps=20", "model.compute=bf16", "scheduler.mode=async", "scheduler.ahead=2",
              "scheduler.max_staleness=2", "rollout.prompts_per_step=16", "rollout.group_size=8",
              "train.minibatches_per_step=2", "eval.prompts=32", "eval.interval_steps=20",
              "reward.workers=1", "weights.keep=3", "weights.anchor_interval=5"});
  ASSERT_NO_FATAL_FAILURE(expect_open());
  HostProcess& worker = join_rollout();
  ASSERT_EQ(run.wait(kHostPatience), 0);
  EXPECT_EQ(worker.wait(20s), 0);
  EXPECT_EQ(steps_done(), kTrainedSteps);

  const auto rows = read_metrics(home_->outside("/tmp/run/metrics.jsonl"));
  ASSERT_TRUE(rows) << rows.failure().message;
  const int64_t whole = static_cast<int64_t>(fs::file_size(
      home_->outside(fmt::format("/tmp/run/weights/p0-v{}.safetensors", kTrainedSteps))));
  std::set<std::string> names = {"weights/stage_ms", "weights/apply_ms", "weights/pause_ms"}, seen;
  names.merge(names_on_page("Names of weights that cross hosts"));
  std::vector<double> eval;
  double received = 0, compressed = 0;
  int64_t rows_of_installs = 0;
  for (const MetricsRow& row : rows.value()) {
    if (const double* reward = row.find("eval/reward")) eval.push_back(*reward);
    for (const auto& [name, value] : row.values) {
      if (!name.starts_with("weights/")) continue;
      seen.insert(name);
      EXPECT_GE(value, 0) << name;
    }
    const double* bytes = row.find("weights/bytes_received");
    if (bytes == nullptr) continue;
    ++rows_of_installs;
    // The first row has version 0, which came whole.
    const double full = *row.find("weights/bytes_full");
    if (rows_of_installs == 1) {
      EXPECT_GE(full, static_cast<double>(whole) * 0.99);
      continue;
    }
    received += *bytes;
    compressed += *row.find("weights/bytes_compressed");
    // A tensor that changed nearly everywhere comes whole within a delta.
    EXPECT_LT(full, static_cast<double>(whole) / 2) << "step " << row.step;
    EXPECT_GT(*row.find("weights/bytes_compressed"), 0) << "step " << row.step;
  }
  EXPECT_EQ(seen, names) << "docs/metrics.md says which names there are";
  EXPECT_GT(rows_of_installs, kTrainedSteps / 3);
  EXPECT_LT(received, static_cast<double>(rows_of_installs * whole)) << "fewer than whole ones";
  EXPECT_GT(compressed, 0);
  ASSERT_EQ(eval.size(), 2u);
  EXPECT_GT(eval[1], eval[0]);
  fmt::print("{} rows, {} B whole, {:.0f} B a version, reward {} -> {}\n", rows_of_installs, whole,
             received / static_cast<double>(std::max<int64_t>(1, rows_of_installs - 1)), eval[0],
             eval[1]);

  // Each install has its three bars, in this order.
  const auto timeline = read_timeline(home_->outside("/tmp/run/timeline.jsonl"));
  ASSERT_TRUE(timeline) << timeline.failure().message;
  std::map<int64_t, std::vector<TimelineRow>> parts;
  for (const TimelineRow& row : timeline.value().rows)
    if (is_install_part(row.what)) parts[row.number].push_back(row);
  EXPECT_GT(std::ssize(parts), kTrainedSteps / 3);
  int64_t whole_sets = 0;
  for (auto& [version, bars] : parts) {
    std::ranges::sort(bars, {}, &TimelineRow::from);
    std::vector<TimelineWhat> kinds;
    for (const TimelineRow& bar : bars) kinds.push_back(bar.what);
    whole_sets +=
        kinds == std::vector{TimelineWhat::kFetch, TimelineWhat::kStage, TimelineWhat::kSwitch} ? 1
                                                                                                : 0;
  }
  EXPECT_GT(whole_sets, kTrainedSteps / 3);

  // What lies there afterwards is proved, by the command that a person has.
  HostProcess& verify =
      home_->spawn({TAILRACE_BINARY, "weights", "verify", "/tmp/run"}, next_output());
  EXPECT_EQ(verify.wait(kHostPatience), 0) << verify.output();
  EXPECT_NE(verify.output().find("all proved"), std::string::npos) << verify.output();
}

}  // namespace
}  // namespace tailrace
