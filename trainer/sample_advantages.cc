#include "trainer/sample_advantages.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/group_signal.h"
#include "trainer/loss/credit.h"
#include "trainer/loss/returns.h"
#include "trainer/loss/shaping.h"

namespace tailrace {
namespace {

// Rewards of the turns of sample `i`, shaped; what no step of the environment gave is the last
// turn's.
std::vector<double> turn_rewards_of(const SampleAdvantages& all, size_t i) {
  const Trajectory& t = *all.samples[i];
  std::vector<double> rewards = t.turn_rewards;
  if (rewards.empty()) rewards.resize(static_cast<size_t>(std::max(1, t.turns)));
  double sum = 0;
  for (double reward : rewards) sum += reward;
  rewards.back() += all.shaped(i) - sum;
  return rewards;
}

}  // namespace

SampleAdvantages sample_advantages(std::vector<const Trajectory*> samples,
                                   std::vector<int32_t> groups, const AlgoOptions& options) {
  SampleAdvantages all{.samples = std::move(samples), .groups = std::move(groups)};
  std::vector<int64_t> lengths;
  std::vector<uint8_t> success, greedy;
  for (const Trajectory* sample : all.samples) {
    const double reward = all.rewards.emplace_back(*sample->reward);
    lengths.push_back(sample->num_sampled());
    success.push_back(reward > 0);
    greedy.push_back(is_baseline(*sample, options));
  }
  all.penalties = length_penalties(options.length, lengths, success, all.groups);
  std::vector<double> shaped;
  for (size_t i = 0; i < all.samples.size(); ++i) shaped.push_back(all.shaped(i));
  all.advantages = group_advantages(options.advantage, options.std_eps, shaped, all.groups, greedy);
  for (size_t g = 0; g + 1 < all.groups.size(); ++g) {
    GroupSignal signal;
    for (auto i = static_cast<size_t>(all.groups[g]); i < static_cast<size_t>(all.groups[g + 1]);
         ++i)
      signal.add(all.rewards[i], all.samples[i]->judged);
    // By the rewards, or what algo.filter_metric judged, and not as they are shaped: a length
    // penalty would give a signal to groups that all failed alike.
    all.advantages.zero_signal[g] =
        compares_members(options.advantage) && !options.distill.has_teacher() && !signal.has();
  }
  return all;
}

bool is_baseline(const Trajectory& sample, const AlgoOptions& options) {
  return options.advantage == AdvantageKind::kGreedy && sample.sampling.temperature == 0;
}

double TurnCredit::of(int32_t turn) const {
  if (turns.empty() || turn < 0) return advantage;
  return turns[std::min(static_cast<size_t>(turn), turns.size() - 1)];
}

std::vector<TurnCredit> turn_credit_of(const SampleAdvantages& all, size_t begin, size_t end,
                                       const AlgoOptions& options) {
  std::vector<TurnCredit> result;
  std::vector<std::vector<double>> rewards;
  std::vector<TurnFacts> facts;
  const bool of_tokens = is_of_tokens(return_kind(options.advantage, options.credit.kind));
  for (size_t i = begin; i < end; ++i) {
    result.push_back({.advantage = of_tokens ? 0 : all.advantages.advantage[i]});
    rewards.push_back(turn_rewards_of(all, i));
  }
  if (of_tokens) {
    for (size_t i = 0; i < rewards.size(); ++i) result[i].rewards = std::move(rewards[i]);
  } else if (options.credit.kind != CreditKind::kTrajectory) {
    for (size_t i = begin; i < end; ++i) {
      const auto& anchors = all.samples[i]->turn_anchors;
      const auto& own = rewards[i - begin];
      facts.push_back({.advantage = all.advantages.advantage[i],
                       .baseline = all.advantages.baseline[i],
                       .scale = all.advantages.scale[i],
                       .rewards = own});
      // Without an anchor for each turn it is not known which turn met which state.
      if (anchors.size() == own.size()) facts.back().anchors = anchors;
    }
    auto turns =
        turn_credit(options.credit, divides_by_std(options.advantage), options.std_eps, facts);
    for (size_t i = 0; i < turns.size(); ++i) {
      result[i].turns = std::move(turns[i]);
      if (goes_by_returns(options.credit.kind))
        result[i].returns = discounted_returns(rewards[i], options.credit.gamma);
    }
  }
  return result;
}

}  // namespace tailrace
