// APRIL (arXiv 2509.18521), partial rollout: twice as many groups are launched as a step keeps, and
// those that still run go on in the next step. Rows 35 and 36.
//
// Published: 32 prompts x 8 responses of mathematics, a cap of 16k, 8 GPUs (engines of two), Qwen3
// of 4B; rollout is over 90 % of the time, so that throughput is tokens trained a second of
// rollout.
//
// Fitted: nothing. No baseline is published in seconds, and both rows are ratios, in which the
// speed of the machine cancels.
//
// Our choice, unpublished: H100s by the roofline; lengths of the thinking model of the same family
// that ROLL Flash publishes (mean 11k at a cap of 32k; log-normal, sigma 0.8), cut at 16k. Shown:
// shorter and narrower ones, and prompts of two kinds.
//
// Its scripts filter groups whose rewards are all equal, and which share that is was not published:
// the gated cells filter none, and 30, 50 and 70 % are shown. Filtering does not depend on length
// here; it is the scheduler's own (replace_zero_signal), of rewards that are drawn.
#include <cmath>

#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr int64_t kCap = 16384, kGroup = 8;

// The chance of a right answer with which this share of groups of 8 is all right or all wrong. A
// share of 0 stands for no filter at all.
double success_of(double filtered) {
  double low = 0.5, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double p = (low + high) / 2;
    (std::pow(p, kGroup) + std::pow(1 - p, kGroup) < filtered ? low : high) = p;
  }
  return low;
}

Measured play(const scheduler::Mode& mode, const simulator::LengthModel& lengths, double filtered) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = 4, .slots = 128, .hardware = engine_of(kH800, kQwen3_4B, 2)}};
  scheduler::Config law = law_of(mode, 32, kGroup);
  law.replace_zero_signal = filtered > 0;
  return measure(law, cluster,
                 {.prompt_tokens = 200, .length = lengths, .success = success_of(filtered)}, 10,
                 60);
}

}  // namespace

std::vector<Cell> run_april() {
  std::vector<Cell> cells;
  scheduler::Mode sync = preset(scheduler::ModeName::kSync);
  scheduler::Mode partial = preset(scheduler::ModeName::kPartial);
  sync.dispatch = partial.dispatch = scheduler::Dispatch::kLeastLoaded;
  const auto add = [&](const std::string& name, const simulator::LengthModel& lengths, Use use,
                       double filtered = 0) {
    const Measured before = play(sync, lengths, filtered), after = play(partial, lengths, filtered);
    const std::string mean = fmt::format("{}, mean {:.0f}", name, before.tokens_per_sample);
    cells.push_back({.row = "35",
                     .what = mean + ": throughput over sync",
                     .unit = "x",
                     .published = 1.225,
                     .simulated = after.tokens_per_s / before.tokens_per_s,
                     .use = use});
    cells.push_back({.row = "36",
                     .what = mean + ": of older versions",
                     .unit = "share",
                     .published = 0.4,
                     .simulated = after.old_share,
                     .use = use});
  };
  simulator::LengthModel thinking = lengths_of(11000, 32768, 0.8);
  thinking.limit = kCap;
  add("thinking", thinking, Use::kGated);
  for (const double filtered : {0.3, 0.5, 0.7})
    add(fmt::format("{:.0f} % filtered", 100 * filtered), thinking, Use::kShown, filtered);
  add("sigma 1", lengths_of(6000, kCap, 1), Use::kShown);
  add("sigma 1", lengths_of(4000, kCap, 1), Use::kShown);
  add("sigma 0.7", lengths_of(4000, kCap, 0.7), Use::kShown);
  simulator::LengthModel two_kinds = lengths_of(3000, kCap, 0.8);
  two_kinds.endless = 0.3;  // a few prompts run to the cap nearly always, most never
  two_kinds.endless_concentration = 1;
  add("two kinds", two_kinds, Use::kShown);
  return cells;
}

}  // namespace tailrace::simulate
