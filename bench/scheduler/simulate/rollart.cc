// RollArt (arXiv 2512.22560), environments whose turns take N(10, sd) seconds: a step whose
// trajectories each go on by themselves, against one whose environments act as a batch. Row 31, and
// the sweep of alpha beside it (row 33).
//
// Published: Qwen3-8B at 32k, 32 H800, a batch of 128 trajectories; and of a healthy step of it 366
// seconds, of which generation takes 54 %, training 23 % and the reset of environments 15 %.
//
// Fitted: tokens of a turn so that generation takes 198 s of a step whose environments answer at
// once, and training to 84 s; both from the healthy step. No cell of row 31 takes part.
//
// Our choice, unpublished: 20 turns (the paper has more than 10 and up to 100 of this kind), 16
// prompts x 8 responses, lengths of a trajectory log-normal with sigma 0.5. Shown: 10 and 40 turns.
//
// How: the 32 GPUs are one engine of 32-fold speed, so that the barrier of the batch holds for all
// of it. There are as many environments as trajectories in a batch, whatever alpha is. Row 31 is
// synchronous; the step includes training.
#include <cmath>

#include <fmt/format.h>

#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

constexpr int64_t kBatch = 128, kGroup = 8;
constexpr double kHealthy = 366, kGeneration = 0.54 * kHealthy, kTraining = 0.23 * kHealthy;

simulator::EpisodeModel episodes_of(double tokens, int64_t turns, double spread) {
  using Kind = simulator::Distribution::Kind;
  return {.prompt_tokens = 1000,
          .length = lengths_of(tokens, 32768, 0.5),
          .turns = {Kind::kConstant, static_cast<double>(turns)},
          .env_tokens = 200,
          .reset = {Kind::kConstant, 0.15 * kHealthy},
          .env = spread < 0 ? simulator::Distribution{}
                            : simulator::Distribution{Kind::kNormal, 10, spread}};
}

Measured play(const simulator::EpisodeModel& episodes, bool lockstep, double ahead = 0) {
  simulator::Cluster cluster;
  simulator::Hardware engine = engine_of(kH800, kQwen3_8B, 1);
  // Of 32 engines side by side a sequence sees what one does.
  engine.decode.sequence /= 32;
  engine.decode.context /= 32;
  engine.prefill_tokens_per_s *= 32;
  engine.kv_tokens *= 32;
  cluster.pools = {{.workers = 1, .slots = kBatch, .hardware = engine, .lockstep = lockstep}};
  cluster.trainer.step = kTraining;
  scheduler::Mode mode = ahead_by(ahead);
  mode.on_stale = scheduler::OnStale::kWait;
  return measure(law_of(mode, kBatch / kGroup, kGroup), cluster, episodes, ahead > 0 ? 8 : 0, 12);
}

}  // namespace

std::vector<Cell> run_rollart() {
  std::vector<Cell> cells;
  for (const int64_t turns : {20, 10, 40}) {
    const bool main = turns == 20;
    const double tokens = solve(kGeneration, 4000, [&](double x) {
      return play(episodes_of(x, turns, -1), false).rollout - 0.15 * kHealthy;
    });
    if (main) {
      cells.push_back({.row = "-",
                       .what = "healthy step: reset, generation, training",
                       .unit = "s",
                       .published = 0.92 * kHealthy,
                       .simulated = play(episodes_of(tokens, turns, -1), false).step,
                       .use = Use::kFitted});
    }
    for (const auto& [spread, published] : {std::pair{1.0, 1.23}, std::pair{10.0, 2.27}}) {
      const simulator::EpisodeModel episodes = episodes_of(tokens, turns, spread);
      cells.push_back(
          {.row = "31",
           .what = fmt::format("{} turns, sd {} s, batched / by trajectory", turns, spread),
           .unit = "x",
           .published = published,
           .simulated = play(episodes, true).step / play(episodes, false).step,
           .use = main ? Use::kGated : Use::kShown});
    }
    if (main) {
      const simulator::EpisodeModel episodes = episodes_of(tokens, turns, 10);
      const double one = play(episodes, false, 1).step;
      double best = 0;
      for (const double ahead : {2.0, 4.0, 6.0})
        best = std::max(best, one / play(episodes, false, ahead).step);
      cells.push_back({.row = "33",
                       .what = "alpha 1 / best alpha up to 6 (at most 1.22)",
                       .unit = "x",
                       .published = 1.22,
                       .simulated = best,
                       .use = Use::kShown});
    }
  }
  return cells;
}

}  // namespace tailrace::simulate
