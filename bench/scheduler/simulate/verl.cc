// verl's fully asynchronous trainer, Qwen2.5-Math-7B on 128 H20 (its documentation): 400 steps by
// the part theta of a step that may run ahead (rows 45, 46).
//
// Published: 512 prompts x 16 responses a step, a cap of 28k, 64:64 GPUs, four local updates a
// step; of the colocated step 356 s, of which generation takes 178 and the rest is training; of
// theta = 0 231 s, of which the trainer waits 128 and updates 99. On the wall 400 steps take 11 s
// more a step colocated and 1.6 s more at theta = 0 (validation and the like); this is added to
// what is simulated, the 1.6 for every theta.
//
// Fitted: how slow decoding is and the mean length, on generation of the colocated step (178 s) and
// on the step of theta = 0; training, on what is published of these two. No cell with theta > 0
// takes part.
//
// Our choice, unpublished: log-normal lengths, sigma 1.2; an H20 by the roofline.
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

struct Costs {
  double slower = 1, mean = 2000, sigma = 1.2;
};

simulator::Cluster cluster_of(const Costs& costs, int64_t sampling) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = sampling,
                    .slots = 256,
                    .hardware = engine_of(kH20, kQwen25_7B, 1, costs.slower)}};
  return cluster;
}

Measured play(const scheduler::Mode& mode, const Costs& costs, const simulator::Cluster& cluster,
              int64_t warm_up) {
  return measure(law_of(mode, 512, 16), cluster,
                 {.prompt_tokens = 200, .length = lengths_of(costs.mean, 28672, costs.sigma)},
                 warm_up, 8);
}

double generation(const Costs& costs) { return play({}, costs, cluster_of(costs, 128), 0).rollout; }

double separated(const Costs& costs, double theta) {
  simulator::Cluster cluster = cluster_of(costs, 64);
  cluster.trainer.sample = 0.75 * kUpdates / (512 * 16);
  cluster.trainer.update = 0.25 * kUpdates;
  scheduler::Mode mode = ahead_by(theta);
  mode.hand_over = scheduler::HandOverBy::kGroups;
  mode.dispatch = scheduler::Dispatch::kLeastLoaded;
  return play(mode, costs, cluster, theta > 0 ? 4 : 0).step;
}

// Both, in turn: the colocated generation says how slow the longest response is, and half of the
// GPUs how much there is beside it.
Costs fit(double sigma) {
  Costs costs{.sigma = sigma};
  costs.mean = solve(kSeparated, costs.mean, [&](double mean) {
    costs.mean = mean;
    costs.slower = solve(kGeneration, costs.slower, [&](double slower) {
      costs.slower = slower;
      return generation(costs);
    });
    return separated(costs, 0);
  });
  return costs;
}

}  // namespace

std::vector<Cell> run_verl() {
  std::vector<Cell> cells;
  const auto hours = [](double step) { return 400 * step / 3600; };
  const Costs costs = fit(1.2);
  cells.push_back({"45", "colocated, 400 steps", "h", 40.8,
                   hours(generation(costs) + kColocated - kGeneration + kMoreColocated),
                   Bound::kTwentyPercent, Use::kFitted});
  cells.push_back({"46", "theta 0", "h", 25.88, hours(separated(costs, 0) + kMoreSeparated),
                   Bound::kTwentyPercent, Use::kFitted});
  const std::pair<double, double> published[] = {{0.1, 19.98}, {0.3, 17.33}, {0.5, 17.37}};
  double last = 0;
  for (const auto& [theta, time] : published) {
    last = hours(separated(costs, theta) + kMoreSeparated);
    cells.push_back({"46", fmt::format("theta {}", theta), "h", time, last});
  }
  cells.push_back({"45", "colocated over theta 0.5", "x", 2.35, 40.8 / last});
  return cells;
}

}  // namespace tailrace::simulate
