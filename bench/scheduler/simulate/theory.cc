// The bound of ROLL Flash (arXiv 2510.11345, its proposition 2) on a step of asynchronous training:
//   max(N mu / ((1 - beta) K) + L / (alpha + 1), N mu_t / (beta K))
// for N samples a step, K devices of which a share beta trains, mean and longest generation times
// mu and L, and mu_t device-seconds of training a sample. Row 53.
//
// Nothing is fitted. A worker is a device that plays one episode at a time; the trainer is as fast
// as its devices together. mu and L are those of the very samples that were played. Counted: how
// many of the cases are above the bound (0 is exact); and how near the bound comes to what is
// simulated as alpha grows.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr std::array<int64_t, 4> kAhead = {1, 4, 16, 64};

struct Case {
  int64_t devices = 0, training = 0, samples = 0, ahead = 0;
  double train_seconds = 0;  // of a sample, on one device
};

// Simulated over the bound.
double against_bound(const Case& one) {
  simulator::Cluster cluster;
  cluster.wire.delay = 0;
  cluster.pools = {
      {.workers = one.devices - one.training, .slots = 1, .hardware = {.decode = {.step = 0.01}}}};
  cluster.trainer.sample = one.train_seconds / static_cast<double>(one.training);
  const simulator::LengthModel lengths{.median = 500, .sigma_response = 1, .limit = 8192};
  const Measured run = measure(law_of(ahead_by(static_cast<double>(one.ahead)), one.samples, 1),
                               cluster, {.length = lengths}, 2 * one.ahead + 4, 40);
  double longest = 0;
  for (const auto& step : run.steps) longest = std::max(longest, static_cast<double>(step.longest));
  const double mean = 0.01 * run.tokens_per_sample;
  const auto n = static_cast<double>(one.samples);
  const double generate = n * mean / static_cast<double>(one.devices - one.training) +
                          0.01 * longest / static_cast<double>(one.ahead + 1);
  const double train = n * cluster.trainer.sample;
  return run.step / std::max(generate, train);
}

}  // namespace

std::vector<Cell> run_theory() {
  std::vector<Cell> cells;
  int above = 0, all = 0;
  double worst = 0;
  std::vector<double> by_ahead;
  for (const int64_t ahead : kAhead) {
    double sum = 0;
    int count = 0;
    for (const int64_t devices : {8, 16, 64}) {
      for (const int64_t share : {8, 4, 2}) {
        for (const int64_t samples : {32, 128}) {
          const double ratio = against_bound(
              {devices, devices / share, samples, ahead, 8.0 / static_cast<double>(share)});
          above += ratio > 1 ? 1 : 0;
          ++all;
          worst = std::max(worst, ratio);
          sum += ratio;
          ++count;
        }
      }
    }
    by_ahead.push_back(sum / count);
  }
  cells.push_back({.row = "53",
                   .what = fmt::format("of {} cases, above the bound", all),
                   .unit = "cases",
                   .published = 0,
                   .simulated = static_cast<double>(above),
                   .bound = Bound::kExact});
  cells.push_back({.row = "53",
                   .what = "largest simulated / bound",
                   .unit = "x",
                   .published = 1,
                   .simulated = worst,
                   .use = Use::kShown});
  for (size_t i = 0; i < by_ahead.size(); ++i) {
    const bool last = i + 1 == by_ahead.size();
    cells.push_back({.row = "53",
                     .what = fmt::format("mean simulated / bound, alpha {}", kAhead[i]),
                     .unit = "x",
                     .published = 1,
                     .simulated = by_ahead[i],
                     .bound = Bound::kTenPercent,
                     .use = last ? Use::kGated : Use::kShown});
  }
  return cells;
}

}  // namespace tailrace::simulate
