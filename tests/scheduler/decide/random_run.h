// A made-up run in which everything goes wrong that can, drawn from a seed: law, cluster, faults
// and episodes, under a Checker.
#pragma once

#include "scheduler/simulator/episodes.h"
#include "tests/scheduler/decide/checker.h"

namespace tailrace::scheduler {

// "a", "b", ...
std::string pool_name(int64_t index);

// Any legal configuration, of any mode, with so many pools of rollout workers.
Config random_config(Rng& rng, int64_t num_pools);

// Of a few tokens; now and then of none.
class RandomEpisodes final : public simulator::EpisodeSource {
 public:
  // Draws whether a row of dataset 0 is broken: for environments, or for verifiers.
  RandomEpisodes(uint64_t seed, const Config& law);
  simulator::Episode draw(Lane lane, const MemberId& member, int32_t attempt) const override;

 private:
  uint64_t seed_;
  int64_t rows_;             // of dataset 0
  int64_t broken_row_ = -1;  // -1: none
  bool for_verifiers_ = false;
  double slowness_ = 1;  // of environments
};

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed);

  // Runs to the end of the run. False with a reason in checker.failure.
  bool run();

 private:
  std::optional<Config> new_rules(const State& state);

  Rng rng_;
  int64_t num_pools_;
  Config law_;
  RandomEpisodes episodes_;
  simulator::Cluster cluster_;
  simulator::World world_;

 public:
  Checker checker;
};

}  // namespace tailrace::scheduler
