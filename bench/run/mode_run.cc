#include "bench/run/mode_run.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "cli/view/worker_use.h"
#include "core/base/time.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

void read_steps(const fs::path& directory, int64_t steps, int64_t samples, ModeRun& run) {
  const auto last = std::max<int64_t>(1, steps / 4);
  double carried_tokens = 0, masked_tokens = 0;
  for (const MetricsRow& row : metrics_of(directory)) {
    const double* seconds = row.find("time/step");
    if (seconds == nullptr) continue;  // of the warm-up
    const auto value = [&](std::string_view name) { return value_of(row, name); };
    const double tokens = value("perf/tokens_per_s") * *seconds;
    ++run.steps;
    run.seconds += *seconds;
    run.tokens += tokens;
    run.loss_tokens += value("policy/loss_tokens");
    masked_tokens += value("staleness/masked_frac") * tokens;
    carried_tokens += value("staleness/carried_frac") * tokens;
    run.sample_seconds +=
        (value("time/env") + value("time/generate")) * static_cast<double>(samples);
    run.train_seconds += value("time/train");
    run.turns += value("rollout/turns/mean");
    run.staleness_mean += value("staleness/mean");
    run.staleness_max = std::max(run.staleness_max, value("staleness/max"));
    run.mismatch = std::max(run.mismatch, std::abs(value("mismatch/kl")));
    if (row.step > steps - last) run.reward += value("reward/mean") / static_cast<double>(last);
  }
  require(run.steps == steps, "{}: {} steps instead of {}", directory.string(), run.steps, steps);
  for (double* mean : {&run.turns, &run.staleness_mean}) *mean /= static_cast<double>(steps);
  require(run.loss_tokens > 0, "{}: no token of it was in a loss", directory.string());
  run.masked = masked_tokens / run.tokens;
  run.partial = carried_tokens / run.tokens;
}

// Tokens that no step trains. An attempt that was stopped half-way never said how many it had: they
// are counted as many as others sampled in such a time. What the end of the run cut off is no
// waste.
double wasted_tokens(std::span<const TimelineRow> rows, Time end) {
  double discarded = 0, stopped_seconds = 0, whole_seconds = 0, whole_tokens = 0;
  for (const TimelineRow& row : rows) {
    if (row.what == TimelineWhat::kDiscarded && row.end != "unreached") {
      for (const TimelineRow::Sample& sample : row.samples)
        discarded += static_cast<double>(std::max<int64_t>(0, sample.tokens));
    }
    if (row.what != TimelineWhat::kGenerate || row.lane != Lane::kTrain) continue;
    const double seconds = seconds_of(row.at - row.from);
    if (row.tokens >= 0) {
      whole_seconds += seconds;
      whole_tokens += static_cast<double>(row.tokens);
    } else if (row.at < end) {
      stopped_seconds += seconds;
    }
  }
  return discarded + (whole_seconds > 0 ? stopped_seconds * whole_tokens / whole_seconds : 0);
}

void read_spans(const fs::path& directory, ModeRun& run) {
  const auto file = read_timeline(RunPaths{directory}.timeline());
  require(file.ok(), "{}: no timeline", directory.string());
  Time begin{}, end{};
  for (const TimelineRow& row : file.value().rows) {
    if (row.what == TimelineWhat::kWarmUp) begin = row.at;
    if (row.what == TimelineWhat::kStep) end = row.at;
    if (row.what == TimelineWhat::kTrain) run.handed_seconds += seconds_of(row.at - row.from);
  }
  const double wasted = wasted_tokens(file.value().rows, end);
  run.redundancy = wasted / (wasted + run.tokens);
  const RunUse use = use_of_workers(file.value().rows, begin, end, /*num_bins=*/1);
  run.overlap = overlap_of(file.value().rows, use);
  const UseShares shares = shares_of(use, Role::kRollout);
  run.tail = shares[static_cast<size_t>(Use::kForSamples)];
  for (size_t i = 0; i < kNumUses; ++i) {
    if (!is_work(static_cast<Use>(i)) && shares[i] > 0)
      run.idle[std::string(name_of(static_cast<Use>(i)))] = shares[i];
  }
}

}  // namespace

ModeRun read_mode_run(const fs::path& directory, int64_t steps, int64_t samples) {
  ModeRun run;
  read_steps(directory, steps, samples, run);
  read_spans(directory, run);
  return run;
}

}  // namespace tailrace
