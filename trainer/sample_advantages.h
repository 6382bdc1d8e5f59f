// Advantages of samples and turns from the rewards of a batch alone: rewards shaped by length,
// compared with the baseline of the group, and shared among turns. Advantages that also need
// log-probabilities or values come later (token_advantages.h).
//
// Thread: any; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/trajectory/trajectory.h"
#include "trainer/loss/advantage.h"
#include "trainer/loss/options.h"

namespace tailrace {

// Samples in the order of their batch, the members of a group side by side.
struct SampleAdvantages {
  std::vector<const Trajectory*> samples = {};  // borrowed; each has a reward
  std::vector<int32_t> groups = {};             // [groups + 1] offsets of samples
  // [samples]
  std::vector<double> rewards = {};    // of the environments
  std::vector<double> penalties = {};  // added to them for advantages; all 0 without shaping
  // Advantages of both sums. zero_signal says what Trajectory::judged says of the group, or else
  // rewards as they were given: length alone would make any group look as if it had something to
  // teach (2503.14476).
  GroupAdvantages advantages = {};

  double shaped(size_t i) const { return rewards[i] + penalties[i]; }
};

// Not empty; `groups` as above.
SampleAdvantages sample_advantages(std::vector<const Trajectory*> samples,
                                   std::vector<int32_t> groups, const AlgoOptions& options);

// Whether a sample is the baseline of its group (AdvantageKind::kGreedy) and not trained on.
bool is_baseline(const Trajectory& sample, const AlgoOptions& options);

// The credit of a sample's turns.
struct TurnCredit {
  double advantage = 0;              // of all, where turns have none of their own
  std::vector<double> turns = {};    // by number
  std::vector<double> rewards = {};  // by number; where advantages are of tokens alone
  std::vector<double> returns = {};  // by number; of a kind of credit that goes by them

  // -1: a turn that is not known.
  double of(int32_t turn) const;
};

// The credit of the members of one group: samples [begin, end).
std::vector<TurnCredit> turn_credit_of(const SampleAdvantages& all, size_t begin, size_t end,
                                       const AlgoOptions& options);

}  // namespace tailrace
