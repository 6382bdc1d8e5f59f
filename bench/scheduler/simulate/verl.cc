// verl's fully asynchronous trainer, Qwen2.5-Math-7B on 128 H20 (its documentation): 400 steps by
// the part theta of a step that may run ahead (rows 45, 46).
//
// Published: 512 prompts x 16 responses a step, a cap of 28k, 64:64 GPUs, four local updates a
// step; of the colocated step 356 s, of which generation takes 178 and the rest is training; of
// theta = 0 231 s, of which the trainer waits 128 and updates 99. On the wall 400 steps take 11 s
// more a step colocated and 1.6 s more at theta = 0 (validation and the like); this is added to
// what is simulated, the 1.6 for every theta.
//
// Fitted: the width and the mean of the lengths, on generation of the colocated step (178 s) and on
// the step of theta = 0; training, on what is published of these two. No cell with theta > 0 takes
// part. They gave a mean of 1518 tokens and a sigma of 0.66, with decoding as fast as the roofline.
//
// Our choice, unpublished: log-normal lengths; an H20 by the roofline, one GPU an engine.
//
// Row 45 is its two ends, 40.8 h (fitted) over theta 0.5, which row 46 counts already: it is shown.
//
// How: streaming by groups with ahead = theta, new weights at once. A step's last local update is a
// quarter of its training, and begins when the last sample is there.
#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr double kGeneration = 177.85, kColocated = 356.3, kSeparated = 231.34, kUpdates = 98.77;
// 400 steps on the wall take more a step than the step itself: validation and the like.
constexpr double kMoreColocated = 367.2 - kColocated, kMoreSeparated = 232.95 - kSeparated;

struct Lengths {
  double mean = 2000, sigma = 0.8;
};

simulator::Cluster cluster_of(int64_t sampling) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = sampling, .slots = 256, .hardware = engine_of(kH20, kQwen25_7B, 1)}};
  return cluster;
}

Measured play(const scheduler::Mode& mode, const Lengths& lengths,
              const simulator::Cluster& cluster, int64_t warm_up) {
  return measure(law_of(mode, 512, 16), cluster,
                 {.prompt_tokens = 200, .length = lengths_of(lengths.mean, 28672, lengths.sigma)},
                 warm_up, 8);
}

double generation(const Lengths& lengths) { return play({}, lengths, cluster_of(128), 0).rollout; }

double separated(const Lengths& lengths, double theta) {
  simulator::Cluster cluster = cluster_of(64);
  cluster.trainer.sample = 0.75 * kUpdates / (512 * 16);
  cluster.trainer.update = 0.25 * kUpdates;
  scheduler::Mode mode = ahead_by(theta);
  mode.hand_over = scheduler::HandOverBy::kGroups;
  mode.dispatch = scheduler::Dispatch::kLeastLoaded;
  return play(mode, lengths, cluster, theta > 0 ? 4 : 0).step;
}

// Both, in turn: the colocated generation says how long the longest response is, and half of the
// GPUs how much there is beside it.
Lengths fit() {
  Lengths lengths;
  lengths.mean = solve(kSeparated, lengths.mean, [&](double mean) {
    lengths.mean = mean;
    lengths.sigma = solve(kGeneration, lengths.sigma, [&](double sigma) {
      lengths.sigma = sigma;
      return generation(lengths);
    });
    return separated(lengths, 0);
  });
  return lengths;
}

}  // namespace

std::vector<Cell> run_verl() {
  std::vector<Cell> cells;
  const auto hours = [](double step) { return 400 * step / 3600; };
  const Lengths lengths = fit();
  cells.push_back(
      {.row = "45",
       .what = fmt::format("colocated, 400 steps (mean {:.0f}, sigma {:.2f})", lengths.mean,
                           lengths.sigma),
       .unit = "h",
       .published = 40.8,
       .simulated = hours(generation(lengths) + kColocated - kGeneration + kMoreColocated),
       .use = Use::kFitted});
  cells.push_back({.row = "46",
                   .what = "theta 0",
                   .unit = "h",
                   .published = 25.88,
                   .simulated = hours(separated(lengths, 0) + kMoreSeparated),
                   .use = Use::kFitted});
  const std::pair<double, double> published[] = {{0.1, 19.98}, {0.3, 17.33}, {0.5, 17.37}};
  double last = 0;
  for (const auto& [theta, time] : published) {
    last = hours(separated(lengths, theta) + kMoreSeparated);
    cells.push_back({.row = "46",
                     .what = fmt::format("theta {}", theta),
                     .unit = "h",
                     .published = time,
                     .simulated = last});
  }
  cells.push_back({.row = "45",
                   .what = "colocated over theta 0.5 (row 46 again)",
                   .unit = "x",
                   .published = 2.35,
                   .simulated = 40.8 / last,
                   .use = Use::kShown});
  return cells;
}

}  // namespace tailrace::simulate
