// ROLL Flash (arXiv 2510.11345): throughput of asynchronous against naive synchronous training of
// 8B models as the GPUs grow (rows 22, 23; 24 beside them), and seconds of a step by the split of
// 40 GPUs (row 25).
//
// Published: mean lengths (11k for the thinking model, 2k for the base model), the cap of 32k, all
// synchronous cells, and that alpha = 2 gives almost the full gain.
//
// Fitted: what training costs, on the split 8:32 of row 25, whose trainer never waits (1703 s); how
// slow decoding is beside the roofline, on the synchronous step of row 25 (2133 s); and for rows 22
// and 23 the prompts of a step, so that naive synchronous training is 3.50 and 1.65 times as fast
// on 128 GPUs as on 16. No asynchronous cell but 8:32 takes part. They gave 187 and 243 prompts,
// decoding 1.23 times as slow as the roofline, and 0.41 GPU-milliseconds of training a token.
//
// Our choice, unpublished: 16 responses a prompt, log-normal lengths (sigma 0.8 for the thinking
// model, 1.2 for the base model, whose mean is a sixteenth of its cap), an H800 by the roofline
// with a KV cache of its memory, and the split of rows 22 and 23: the fastest in whole nodes of 8
// GPUs, as all splits of row 25 are. Shown: other widths of the lengths.
//
// How: naive synchronous keeps the responses of a prompt on one engine and gives all of them out at
// once; row 24 gives each response to the least loaded engine. Asynchronous is ahead = alpha with
// new weights at once (interrupt, recompute KV, go on), and on_stale = wait: its buffer hands the
// oldest groups over first and waits for those that still run. That waiting decides row 23: without
// it the base model is 5 times as fast on 128 GPUs, not 2.2.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr int64_t kGroup = 16, kCap = 32768, kAlpha = 2, kNode = 8;
constexpr std::array<int64_t, 4> kGpus = {16, 32, 64, 128};

struct Costs {
  simulator::LengthModel lengths;
  int64_t prompts = 256;     // of a step
  double slower = 1;         // times all of decoding
  double train_seconds = 0;  // GPU-seconds a token
};

simulator::Cluster cluster_of(const Costs& costs, int64_t sampling, int64_t training,
                              int64_t slots) {
  simulator::Cluster cluster;
  const simulator::Hardware engine = engine_of(kH800, kQwen3_8B, 1, costs.slower);
  cluster.pools = {{.workers = sampling, .slots = slots, .hardware = engine}};
  cluster.trainer.token = costs.train_seconds / static_cast<double>(training);
  return cluster;
}

simulator::EpisodeModel episodes_of(const Costs& costs) {
  return {.prompt_tokens = 200, .length = costs.lengths};
}

Measured naive(const Costs& costs, int64_t gpus) {
  return measure(law_of({}, costs.prompts, kGroup),
                 cluster_of(costs, gpus, gpus, costs.prompts * kGroup), episodes_of(costs), 0, 4);
}

Measured queued(const Costs& costs, int64_t gpus) {
  scheduler::Mode mode;
  mode.dispatch = scheduler::Dispatch::kLeastLoaded;
  return measure(law_of(mode, costs.prompts, kGroup), cluster_of(costs, gpus, gpus, 128),
                 episodes_of(costs), 0, 4);
}

Measured asynchronous(const Costs& costs, int64_t sampling, int64_t training) {
  scheduler::Mode mode = ahead_by(kAlpha);
  mode.on_stale = scheduler::OnStale::kWait;
  mode.dispatch = scheduler::Dispatch::kLeastLoaded;
  return measure(law_of(mode, costs.prompts, kGroup), cluster_of(costs, sampling, training, 128),
                 episodes_of(costs), 4, 6);
}

struct Split {
  int64_t training = 0;
  double step = 0;
};

// The fastest in whole nodes, up to half of the GPUs.
Split best_split(const Costs& costs, int64_t gpus) {
  Split best;
  for (int64_t training = kNode; training <= gpus / 2; training += std::max(kNode, gpus / 8)) {
    const double step = asynchronous(costs, gpus - training, training).step;
    if (best.training == 0 || step < best.step) best = {training, step};
  }
  return best;
}

struct Scaling {
  std::string row, name;
  double mean = 0, sigma = 0;
  std::array<double, 4> naive, sync_roll, async;  // relative to each other
};

// So many prompts a step that naive training scales as published.
int64_t fit_prompts(const Scaling& scaling, Costs costs) {
  const double prompts = solve(
      scaling.naive[3] / scaling.naive[0], 200,
      [&](double x) {
        costs.prompts = std::lround(x);
        return naive(costs, kGpus[0]).step / naive(costs, kGpus[3]).step;
      },
      0.02);  // of whole prompts
  return std::lround(prompts);
}

constexpr double kSynchronous = 2133, kTrainerBound = 1703;  // row 25

// A trainer that never waits does not see how fast the others decode: training is fitted first.
void fit_costs(Costs& costs) {
  costs.train_seconds = solve(kTrainerBound, costs.train_seconds, [&](double seconds) {
    costs.train_seconds = seconds;
    return asynchronous(costs, 32, 8).step;
  });
  costs.slower = solve_slower(kSynchronous, costs.slower, [&](double slower) {
    costs.slower = slower;
    return naive(costs, 40).step;
  });
}

void add_scaling(const Scaling& scaling, std::vector<Cell>& cells, const Costs& costs,
                 const std::string& suffix, Use use) {
  double first = 0;
  for (size_t i = 0; i < kGpus.size(); ++i) {
    const int64_t gpus = kGpus[i];
    const double sync = naive(costs, gpus).step;
    if (i == 0) first = sync;
    const Split split = best_split(costs, gpus);
    const std::string name = fmt::format("{}{}, {} GPUs", scaling.name, suffix, gpus);
    if (use == Use::kGated) {
      const bool fitted = i == 0 || i == 3;
      cells.push_back({.row = scaling.row,
                       .what = name + ", naive, against 16",
                       .unit = "x",
                       .published = scaling.naive[i] / scaling.naive[0],
                       .simulated = first / sync,
                       .use = fitted ? Use::kFitted : Use::kShown});
      cells.push_back({.row = "24",
                       .what = name + ", queue and replication",
                       .unit = "x",
                       .published = scaling.sync_roll[i] / scaling.naive[i],
                       .simulated = sync / queued(costs, gpus).step,
                       .use = Use::kShown});
    }
    cells.push_back(
        {.row = scaling.row,
         .what = fmt::format("{}, async {}:{}", name, split.training, gpus - split.training),
         .unit = "x",
         .published = scaling.async[i] / scaling.naive[i],
         .simulated = sync / split.step,
         .use = use});
  }
}

void add_splits(const Costs& costs, std::vector<Cell>& cells) {
  cells.push_back({.row = "25",
                   .what = "40 GPUs, synchronous",
                   .unit = "s",
                   .published = kSynchronous,
                   .simulated = naive(costs, 40).step,
                   .use = Use::kFitted});
  const std::array<std::pair<int64_t, double>, 4> published = {
      {{8, 1703}, {16, 1298}, {24, 2188}, {32, 4326}}};
  for (const auto& [training, seconds] : published) {
    cells.push_back({.row = "25",
                     .what = fmt::format("40 GPUs, {}:{}", training, 40 - training),
                     .unit = "s",
                     .published = seconds,
                     .simulated = asynchronous(costs, 40 - training, training).step,
                     .use = training == 8 ? Use::kFitted : Use::kGated});
  }
}

}  // namespace

std::vector<Cell> run_roll_flash() {
  const Scaling think{.row = "22",
                      .name = "thinking, mean 11k",
                      .mean = 11000,
                      .sigma = 0.8,
                      .naive = {1.02, 1.57, 2.31, 3.57},
                      .sync_roll = {1.08, 1.74, 3.06, 4.10},
                      .async = {1.00, 1.88, 3.86, 7.60}};
  const Scaling base{.row = "23",
                     .name = "base, mean 2k",
                     .mean = 2000,
                     .sigma = 1.2,
                     .naive = {0.65, 0.82, 0.96, 1.07},
                     .sync_roll = {0.77, 0.88, 1.02, 1.15},
                     .async = {1.00, 1.47, 2.02, 2.40}};
  std::vector<Cell> cells;
  Costs costs{.lengths = lengths_of(think.mean, kCap, think.sigma),
              .train_seconds = train_gpu_seconds(kH800, kQwen3_8B)};
  for (int pass = 0; pass < 2; ++pass) {
    costs.prompts = fit_prompts(think, costs);
    fit_costs(costs);
  }
  add_splits(costs, cells);
  add_scaling(think, cells, costs, "", Use::kGated);
  costs.lengths = lengths_of(base.mean, kCap, base.sigma);
  costs.prompts = fit_prompts(base, costs);
  add_scaling(base, cells, costs, "", Use::kGated);
  for (const double sigma : {0.9, 1.5}) {
    costs.lengths = lengths_of(base.mean, kCap, sigma);
    costs.prompts = fit_prompts(base, costs);
    add_scaling(base, cells, costs, fmt::format(", sigma {}", sigma), Use::kShown);
  }
  return cells;
}

}  // namespace tailrace::simulate
