#include "trainer/loss/gradient_columns.h"

namespace tailrace {

PolicyRule policy_rule(const PolicyLossConfig& config) {
  return {.surrogate = surrogate_rule(config.surrogate),
          .ratio = config.ratio,
          .sequence_mask = config.correction.sequence_mask,
          .kl_estimator = config.kl.estimator,
          .kl_unbiased = config.kl.unbiased,
          .kl_coef = config.kl.in_loss() ? config.kl.coef : 0,
          .entropy_coef = config.entropy_coef,
          .imitation_coef = config.imitation.coef,
          .imitation_level = config.imitation.level};
}

std::span<const float> kl_logprob(const PolicyLossConfig& config, const PolicyLossInput& input) {
  return config.kl.target == KlTarget::kReference ? input.ref_logprob : input.behaviour_logprob;
}

GradientColumns gradient_columns(const PolicyLossConfig& config, const PolicyLossInput& input,
                                 const LossCounts& counts) {
  const size_t n = input.sequence.size();
  GradientColumns columns{.weight = std::vector<double>(n),
                          .correction = std::vector<double>(n),
                          .flags = std::vector<uint8_t>(n),
                          .turns = {},
                          .sequence_turns = {},
                          .stats = {}};
  columns.stats = token_weights(config, input, counts, columns.weight, columns.correction);
  for (size_t t = 0; t < n; ++t) {
    if (input.mask[t] != 0) columns.flags[t] |= kTrainedToken;
    if (!input.positive.empty() && input.positive[t] != 0) columns.flags[t] |= kPositiveToken;
    // Offsets of tokens by turn, and of turns by sequence: the kernel sums ratios over either
    // without a search.
    const bool begins_sequence = t == 0 || input.sequence[t] != input.sequence[t - 1];
    if (begins_sequence)
      columns.sequence_turns.push_back(static_cast<int32_t>(columns.turns.size()));
    if (begins_sequence || input.turn[t] != input.turn[t - 1])
      columns.turns.push_back(static_cast<int32_t>(t));
  }
  columns.sequence_turns.push_back(static_cast<int32_t>(columns.turns.size()));
  columns.turns.push_back(static_cast<int32_t>(n));
  return columns;
}

PolicyLossResult policy_result(const PolicyLossConfig& config, const PolicySums& sums) {
  const auto count = [](double x) { return static_cast<int64_t>(x); };
  PolicyLossResult result;
  result.policy_term = sums.policy_term;
  result.kl_term = sums.kl_term;
  result.entropy_term = sums.entropy_term;
  result.imitation_term = sums.imitation_term;
  result.loss = total_loss(config, result);
  PolicyLossStats& stats = result.stats;
  stats.tokens = count(sums.tokens);
  stats.clipped_low = count(sums.clipped_low);
  stats.clipped_high = count(sums.clipped_high);
  stats.dual_clipped = count(sums.dual_clipped);
  stats.clamped = count(sums.clamped);
  stats.sequence_masked = count(sums.sequence_masked);
  stats.ratio_min = sums.ratio_min;
  stats.ratio_max = sums.ratio_max;
  stats.old_minus_new_sum = sums.old_minus_new;
  stats.drift_k3_sum = sums.drift_k3;
  stats.entropy_sum = sums.entropy;
  return result;
}

}  // namespace tailrace
