// AReaL (arXiv 2505.24298): asynchronous against synchronous training on as many GPUs (row 41),
// interruptible generation (row 42), and throughput by the bound on staleness (row 43).
//
// Published: hours of 1000 steps, synchronous 41.0 (1.5B, 16 nodes of 8) and 57.7 (7B, 24 nodes); a
// split of 3:1 between generation and training; eta = 8 for mathematics; 128.7k tokens/s at eta 0.
//
// Fitted: how slow decoding is beside the roofline, on the synchronous step of each model (147.6 s
// and 207.7 s). No asynchronous cell takes part.
//
// Our choice, unpublished: 512 prompts x 16 responses a step, a cap of 27k; a mean of 2.3k tokens,
// which is what 128.7k tokens/s and 147.6 s a step come to; log-normal, sigma 1.2; training by the
// roofline. Shown: another width.
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

simulator::Cluster cluster_of(const Setting& setting, double slower, int64_t sampling,
                              int64_t training) {
  simulator::Cluster cluster;
  cluster.pools = {
      {.workers = sampling, .slots = 256, .hardware = engine_of(kH800, setting.model, 1, slower)}};
  cluster.trainer.token = train_gpu_seconds(kH800, setting.model) / static_cast<double>(training);
  return cluster;
}

Measured play(const scheduler::Mode& mode, const simulator::Cluster& cluster, double sigma,
              int64_t prompts, int64_t warm_up) {
  return measure(law_of(mode, prompts, kGroup), cluster,
                 {.prompt_tokens = 300, .length = lengths_of(2320, 27648, sigma)}, warm_up, 8);
}

}  // namespace

std::vector<Cell> run_areal() {
  const Setting settings[] = {{"1.5B", kQwen25_1_5B, 128, 41.0, 14.8, 1.12},
                              {"7B", kQwen25_7B, 192, 57.7, 25.4, 1.17}};
  std::vector<Cell> cells;
  for (const Setting& setting : settings) {
    for (const double sigma : {1.2, 0.9}) {
      const Use use = sigma == 1.2 ? Use::kGated : Use::kShown;
      const std::string name =
          setting.name + (use == Use::kGated ? "" : fmt::format(", sigma {}", sigma));
      const double slower = solve(3.6 * setting.synchronous, 1.5, [&](double x) {
        return play({}, cluster_of(setting, x, setting.gpus, setting.gpus), sigma, kPrompts, 0)
            .step;
      });
      const simulator::Cluster colocated = cluster_of(setting, slower, setting.gpus, setting.gpus);
      const simulator::Cluster split =
          cluster_of(setting, slower, setting.gpus * 3 / 4, setting.gpus / 4);
      const double sync = play({}, colocated, sigma, kPrompts, 0).step;
      if (use == Use::kGated) {
        cells.push_back({"41", name + ", hours of 1000 steps, synchronous", "h",
                         setting.synchronous, sync / 3.6, Bound::kTwentyPercent, Use::kFitted});
      }
      cells.push_back({"41", name + ", speed-up", "x", setting.synchronous / setting.asynchronous,
                       sync / play(ahead_by(8), split, sigma, kPrompts, 10).step,
                       Bound::kTwentyPercent, use});
      simulator::Cluster four = cluster_of(setting, slower, 24, 8);
      four.trainer = {};
      scheduler::Mode waits = ahead_by(8);
      waits.install = scheduler::InstallWhen::kDrained;
      cells.push_back({"42", name + ", interruptible generation over waiting", "x",
                       setting.interruptible,
                       play(ahead_by(8), four, sigma, kPrompts, 10).tokens_per_s /
                           play(waits, four, sigma, kPrompts, 10).tokens_per_s,
                       Bound::kTenPercent, use});
      if (setting.name == "1.5B" && use == Use::kGated) {
        cells.push_back({"43", "1.5B, throughput at eta 16 over eta 0", "x", 3.1,
                         play({}, split, sigma, kPrompts, 0).step /
                             play(ahead_by(16), split, sigma, kPrompts, 18).step,
                         Bound::kOrder});
      }
    }
  }
  return cells;
}

}  // namespace tailrace::simulate
