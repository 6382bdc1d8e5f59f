// AReaL (arXiv 2505.24298): asynchronous against synchronous training on as many GPUs (row 41),
// interruptible generation (row 42), and throughput by the bound on staleness (row 43).
//
// Published: hours of 1000 steps, synchronous 41.0 (1.5B, 16 nodes of 8) and 57.7 (7B, 24 nodes); a
// split of 3:1 between generation and training; eta = 8 for mathematics; 128.7k tokens/s at eta 0.
//
// Fitted: the width of the lengths, on the synchronous step of each model (147.6 s and 207.7 s). No
// asynchronous cell takes part. It gave a sigma of 0.70 and 0.56, and with four times the training
// 0.65 and 0.44, with decoding as fast as the roofline.
//
// Our choice, unpublished: 512 prompts x 16 responses a step, a cap of 27k; a mean of 2.3k tokens,
// which is what 128.7k tokens/s and 147.6 s a step come to; log-normal; decoding by the roofline,
// one GPU an engine; training by the roofline, and 4 times as much.
//
// Undetermined: one synchronous number a model has to tell decoding, lengths and training apart.
// Both costs of training meet it, and rows 41 and 42 are shown for both.
//
// How: asynchronous is ahead = eta, with new weights at once; "waits" is the same where a worker
// takes new weights when all that it runs has ended (install = drained). Row 42 is on 4 nodes; it
// is of generation alone, so that its trainer takes no time.
#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr int64_t kPrompts = 512, kGroup = 16;

struct Setting {
  std::string name;
  Model model;
  int64_t gpus = 0;
  double synchronous = 0, asynchronous = 0;  // hours of 1000 steps
  double interruptible = 0;                  // over waiting
};

struct Costs {
  double training = 1;  // times its roofline
  double sigma = 1;
};

simulator::Cluster cluster_of(const Setting& setting, const Costs& costs, int64_t sampling,
                              int64_t training) {
  simulator::Cluster cluster;
  cluster.pools = {
      {.workers = sampling, .slots = 256, .hardware = engine_of(kH800, setting.model, 1)}};
  cluster.trainer.token =
      costs.training * train_gpu_seconds(kH800, setting.model) / static_cast<double>(training);
  return cluster;
}

Measured play(const scheduler::Mode& mode, const simulator::Cluster& cluster, const Costs& costs,
              int64_t warm_up, int64_t steps = 8) {
  return measure(law_of(mode, kPrompts, kGroup), cluster,
                 {.prompt_tokens = 300, .length = lengths_of(2320, 27648, costs.sigma)}, warm_up,
                 steps);
}

double synchronous(const Setting& setting, const Costs& costs) {
  return play({}, cluster_of(setting, costs, setting.gpus, setting.gpus), costs, 0).step;
}

// Of generation alone, on 4 nodes. Windows of 8 steps differ by 7 % between each other.
double interruptible_over_waiting(const Setting& setting, const Costs& costs) {
  constexpr int64_t kSteps = 30;
  simulator::Cluster four = cluster_of(setting, costs, 24, 8);
  four.trainer = {};
  scheduler::Mode waits = ahead_by(8);
  waits.install = scheduler::InstallWhen::kDrained;
  return play(ahead_by(8), four, costs, 10, kSteps).tokens_per_s /
         play(waits, four, costs, 10, kSteps).tokens_per_s;
}

}  // namespace

std::vector<Cell> run_areal() {
  const Setting settings[] = {{"1.5B", kQwen25_1_5B, 128, 41.0, 14.8, 1.12},
                              {"7B", kQwen25_7B, 192, 57.7, 25.4, 1.17}};
  std::vector<Cell> cells;
  for (const Setting& setting : settings) {
    for (const double training : {1.0, 4.0}) {
      Costs costs{.training = training};
      costs.sigma = solve(
          3.6 * setting.synchronous, 0.8,
          [&](double sigma) {
            costs.sigma = sigma;
            return synchronous(setting, costs);
          },
          0.01);
      const simulator::Cluster split =
          cluster_of(setting, costs, setting.gpus * 3 / 4, setting.gpus / 4);
      const double sync = synchronous(setting, costs);
      const std::string name =
          fmt::format("{}, training x {}, sigma {:.2f}", setting.name, training, costs.sigma);
      cells.push_back({.row = "41",
                       .what = name + ", sync",
                       .unit = "h",
                       .published = setting.synchronous,
                       .simulated = sync / 3.6,
                       .use = Use::kFitted});
      cells.push_back({.row = "41",
                       .what = name + ", speed-up",
                       .unit = "x",
                       .published = setting.synchronous / setting.asynchronous,
                       .simulated = sync / play(ahead_by(8), split, costs, 10).step,
                       .use = Use::kUndetermined});
      cells.push_back({.row = "42",
                       .what = name + ", over waiting",
                       .unit = "x",
                       .published = setting.interruptible,
                       .simulated = interruptible_over_waiting(setting, costs),
                       .bound = Bound::kTenPercent,
                       .use = Use::kUndetermined});
      if (setting.name == "1.5B" && training == 1) {
        cells.push_back({.row = "43",
                         .what = "1.5B, throughput at eta 16 over eta 0",
                         .unit = "x",
                         .published = 3.1,
                         .simulated = play({}, split, costs, 0).step /
                                      play(ahead_by(16), split, costs, 18).step,
                         .bound = Bound::kOrder});
      }
    }
  }
  return cells;
}

}  // namespace tailrace::simulate
