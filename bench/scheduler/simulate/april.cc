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
#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr int64_t kCap = 16384;

Measured play(const scheduler::Mode& mode, const simulator::LengthModel& lengths) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = 4, .slots = 128, .hardware = engine_of(kH800, kQwen3_4B, 2)}};
  return measure(law_of(mode, 32, 8), cluster, {.prompt_tokens = 200, .length = lengths}, 10, 60);
}

}  // namespace

std::vector<Cell> run_april() {
  std::vector<Cell> cells;
  scheduler::Mode sync = preset(scheduler::ModeName::kSync);
  scheduler::Mode partial = preset(scheduler::ModeName::kPartial);
  sync.dispatch = partial.dispatch = scheduler::Dispatch::kLeastLoaded;
  const auto add = [&](const std::string& name, const simulator::LengthModel& lengths, Use use) {
    const Measured before = play(sync, lengths), after = play(partial, lengths);
    const std::string mean = fmt::format("{}, mean {:.0f}", name, before.tokens_per_sample);
    cells.push_back({"35", mean + ": throughput over sync", "x", 1.225,
                     after.tokens_per_s / before.tokens_per_s, Bound::kTwentyPercent, use});
    cells.push_back({"36", mean + ": of older versions", "share", 0.4, after.old_share,
                     Bound::kTwentyPercent, use});
  };
  simulator::LengthModel thinking = lengths_of(11000, 32768, 0.8);
  thinking.limit = kCap;
  add("thinking", thinking, Use::kGated);
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
