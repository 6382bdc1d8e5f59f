#include "trainer/loss/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

// Corrections of the trained tokens of one sequence.
struct SequenceCorrections {
  std::vector<double> weight, log_weight;  // [rows] c; l_old - l_inf, clamped
  std::vector<int32_t> turn;

  void run(const CorrectionOptions& options, const PolicyLossInput& in, const LossCounts& counts,
           std::span<const size_t> rows, PolicyLossStats& stats) {
    log_weight.resize(rows.size());
    weight.resize(rows.size());
    turn.resize(rows.size());
    for (size_t k = 0; k < rows.size(); ++k) {
      double difference = double{in.old_logprob[rows[k]]} - in.behaviour_logprob[rows[k]];
      auto [x, cut] = clamp_log(difference);
      log_weight[k] = x;
      turn[k] = in.turn[rows[k]];
      stats.clamped += cut;
      // k3 wants log behaviour - log old, since the behaviour policy sampled.
      stats.mismatch_k3_sum += kl_term(KlEstimator::kK3, -x).value;
    }
    stats.correction_cut += correction_weights(options, log_weight, turn, weight);
    for (double w : weight) {
      stats.correction_sum += w;
      stats.correction_max = std::max(stats.correction_max, w);
    }
    if (options.normalize)
      for (double& w : weight) w /= counts.mean_correction;
  }
};

// Calls visit(rows) with the indices of the trained tokens of each sequence, ascending.
template <class Visit>
void for_each_sequence(const PolicyLossInput& input, const Visit& visit) {
  std::vector<size_t> rows;
  for (size_t begin = 0; begin < input.sequence.size();) {
    size_t end = begin;
    rows.clear();
    for (; end < input.sequence.size() && input.sequence[end] == input.sequence[begin]; ++end) {
      // Left out before anything is computed: a masked token's values may be anything, NaN
      // included.
      if (input.mask[end]) rows.push_back(end);
    }
    visit(rows);
    begin = end;
  }
}

// One pass over the trained tokens of one sequence.
class SequenceLoss {
 public:
  SequenceLoss(const PolicyLossConfig& config, const PolicyLossInput& input,
               const LossCounts& counts, std::span<float> dlogprob, std::span<float> dentropy,
               PolicyLossResult& result)
      : config_(config),
        in_(input),
        counts_(counts),
        dlogprob_(dlogprob),
        dentropy_(dentropy),
        out_(result) {}

  // rows: indices of the trained tokens of one sequence, ascending.
  void run(std::span<const size_t> rows) {
    // First of the whole sequence: at its level every weight is the product over all of it.
    corrections_.run(config_.correction, in_, counts_, rows, out_.stats);
    mask_sequence(rows);
    for (size_t begin = 0; begin < rows.size();) {
      size_t end = unit_end(rows, begin);
      run_unit(rows.subspan(begin, end - begin), begin);
      begin = end;
    }
    for (size_t row : rows) add_regularisers(row);
    if (config_.imitation.coef != 0) imitate(rows);
  }

 private:
  size_t unit_end(std::span<const size_t> rows, size_t begin) const {
    if (config_.ratio == RatioUnit::kToken) return begin + 1;
    if (config_.ratio != RatioUnit::kTurn) return rows.size();
    size_t end = begin + 1;
    while (end < rows.size() && in_.turn[rows[end]] == in_.turn[rows[begin]]) ++end;
    return end;
  }

  // Failures that the policy no longer writes.
  void mask_sequence(std::span<const size_t> rows) {
    if (config_.correction.sequence_mask == 0 || rows.empty()) return;
    double sum = 0;
    for (size_t row : rows) sum += double{in_.behaviour_logprob[row]} - in_.logprob[row];
    if (sum / static_cast<double>(rows.size()) <= config_.correction.sequence_mask) return;
    for (size_t k = 0; k < rows.size(); ++k) {
      if (in_.advantage[rows[k]] >= 0) continue;
      corrections_.weight[k] = 0;
      ++out_.stats.sequence_masked;
    }
  }

  // The tokens that share one ratio; `first` is the place of rows[0] in the corrections.
  void run_unit(std::span<const size_t> rows, size_t first) {
    PolicyLossStats& stats = out_.stats;
    // The log of the geometric mean of the tokens' ratios (GSPO, Zheng et al. 2025, 2507.18071). Of
    // one token it is its own log-ratio.
    double mean = 0;
    for (size_t row : rows) mean += double{in_.logprob[row]} - in_.old_logprob[row];
    auto size = static_cast<double>(rows.size());
    auto [log_ratio, cut] = clamp_log(mean / size);
    double ratio = std::exp(log_ratio);
    stats.clamped += cut;
    stats.ratio_min = std::min(stats.ratio_min, ratio);
    stats.ratio_max = std::max(stats.ratio_max, ratio);

    const bool behaviour = weighs_behaviour(config_.surrogate.kind);
    const bool splits = splits_by_reward(config_.surrogate.kind);
    const double log_importance = behaviour ? log_importance_of(rows) : 0;
    // s_t = sg(s) exp(l_t - sg(l_t)): the value of all, and each token's own gradient.
    const bool own = config_.ratio == RatioUnit::kSequenceToken;
    double d_log_ratio = 0;
    for (size_t k = 0; k < rows.size(); ++k) {
      size_t row = rows[k];
      SurrogateTerm term =
          surrogate(config_.surrogate, {.log_ratio = log_ratio,
                                        .log_importance = log_importance,
                                        .logprob = in_.logprob[row],
                                        .drift = double{in_.logprob[row]} - in_.old_logprob[row],
                                        .advantage = in_.advantage[row],
                                        .positive = splits && in_.positive[row] != 0});
      double scale = token_weight(config_.aggregation, counts_, in_.trajectory[row]) *
                     corrections_.weight[first + k];
      out_.policy_term += scale * term.value;
      if (!own) d_log_ratio += scale * term.d_log_ratio;
      const double d_own = own && !cut ? scale * term.d_log_ratio : 0;
      dlogprob_[row] = static_cast<float>(scale * term.d_logprob + d_own);
      stats.clipped_low += term.clipped_low;
      stats.clipped_high += term.clipped_high;
      stats.dual_clipped += term.dual_clipped;
    }
    // The clamp is flat there.
    if (cut) return;
    // The unit's ratio depends on each of its tokens by 1 / size: all of them get the whole unit's
    // derivative.
    for (size_t row : rows) dlogprob_[row] += static_cast<float>(d_log_ratio / size);
  }

  // The turns of a success. No correction weighs them: they are demonstrations, whoever wrote them.
  void imitate(std::span<const size_t> rows) {
    std::vector<double> logprob;
    for (size_t begin = 0; begin < rows.size();) {
      size_t end = begin;
      logprob.clear();
      for (; end < rows.size() && in_.turn[rows[end]] == in_.turn[rows[begin]]; ++end)
        logprob.push_back(in_.logprob[rows[end]]);
      const double probability = turn_probability(config_.imitation.level, logprob);
      for (size_t row : rows.subspan(begin, end - begin)) {
        if (in_.positive[row] == 0 || in_.advantage[row] <= 0) continue;
        const double weight = token_weight(config_.aggregation, counts_, in_.trajectory[row]) *
                              probability * in_.advantage[row];
        out_.imitation_term -= weight * in_.logprob[row];
        dlogprob_[row] -= static_cast<float>(config_.imitation.coef * weight);
      }
      begin = end;
    }
  }

  // How much likelier the unit is now than when it was sampled: the product of its tokens' ratios,
  // and no mean. A mean is for bounds that must mean the same at any length; this has the bound 1.
  double log_importance_of(std::span<const size_t> rows) {
    double sum = 0;
    for (size_t row : rows) sum += double{in_.logprob[row]} - in_.behaviour_logprob[row];
    auto [x, cut] = clamp_log(sum);
    out_.stats.clamped += cut;
    return x;
  }

  void add_regularisers(size_t row) {
    PolicyLossStats& stats = out_.stats;
    double l = in_.logprob[row],
           weight = token_weight(config_.aggregation, counts_, in_.trajectory[row]);
    stats.tokens += 1;
    stats.old_minus_new_sum += in_.old_logprob[row] - l;
    stats.drift_k3_sum +=
        kl_term(KlEstimator::kK3, clamp_log(in_.old_logprob[row] - l).value).value;

    auto other =
        config_.kl.target == KlTarget::kReference ? in_.ref_logprob : in_.behaviour_logprob;
    if (!other.empty()) {
      auto [x, cut] = clamp_log(l - other[row]);
      KlTerm term = kl_term(config_.kl.estimator, x);
      if (config_.kl.unbiased) term = times_ratio(term, l - in_.old_logprob[row]);
      out_.kl_term += weight * term.value;
      stats.clamped += cut;
      if (!cut && config_.kl.in_loss())
        dlogprob_[row] += static_cast<float>(weight * config_.kl.coef * term.d_logprob);
    }
    if (!in_.entropy.empty()) {
      out_.entropy_term += weight * in_.entropy[row];
      stats.entropy_sum += in_.entropy[row];
      // A bonus: the loss falls when the entropy rises.
      if (!dentropy_.empty()) dentropy_[row] = static_cast<float>(-weight * config_.entropy_coef);
    }
  }

  const PolicyLossConfig& config_;
  const PolicyLossInput& in_;
  const LossCounts& counts_;
  std::span<float> dlogprob_, dentropy_;
  PolicyLossResult& out_;
  SequenceCorrections corrections_;
};

void check_lengths(const PolicyLossConfig& config, const PolicyLossInput& in,
                   std::span<float> dlogprob, std::span<float> dentropy) {
  size_t n = in.logprob.size();
  TR_CHECK(in.old_logprob.size() == n && in.behaviour_logprob.size() == n &&
               in.advantage.size() == n && in.mask.size() == n && in.sequence.size() == n &&
               in.turn.size() == n && in.trajectory.size() == n && dlogprob.size() == n,
           "{} tokens", n);
  bool regularised = config.entropy_coef != 0;
  TR_CHECK(in.entropy.size() == n || (in.entropy.empty() && !regularised), "entropy {}",
           in.entropy.size());
  TR_CHECK(dentropy.size() == n || (dentropy.empty() && !regularised), "dentropy {}",
           dentropy.size());
  TR_CHECK(in.ref_logprob.size() == n || (in.ref_logprob.empty() && !config.kl.needs_reference()),
           "ref {}", in.ref_logprob.size());
  const bool needs_positive = splits_by_reward(config.surrogate.kind) || config.imitation.coef != 0;
  TR_CHECK(in.positive.size() == n || (in.positive.empty() && !needs_positive), "positive {}",
           in.positive.size());
}

}  // namespace

void PolicyLossStats::add(const PolicyLossStats& o) {
  tokens += o.tokens;
  clipped_low += o.clipped_low;
  clipped_high += o.clipped_high;
  dual_clipped += o.dual_clipped;
  clamped += o.clamped;
  correction_cut += o.correction_cut;
  sequence_masked += o.sequence_masked;
  ratio_min = std::min(ratio_min, o.ratio_min);
  ratio_max = std::max(ratio_max, o.ratio_max);
  correction_sum += o.correction_sum;
  correction_max = std::max(correction_max, o.correction_max);
  old_minus_new_sum += o.old_minus_new_sum;
  drift_k3_sum += o.drift_k3_sum;
  mismatch_k3_sum += o.mismatch_k3_sum;
  entropy_sum += o.entropy_sum;
}

void PolicyLossResult::add(const PolicyLossResult& o) {
  loss += o.loss;
  policy_term += o.policy_term;
  kl_term += o.kl_term;
  entropy_term += o.entropy_term;
  imitation_term += o.imitation_term;
  stats.add(o.stats);
}

double total_loss(const PolicyLossConfig& config, const PolicyLossResult& terms) {
  const double kl = config.kl.in_loss() ? config.kl.coef * terms.kl_term : 0;
  return terms.policy_term + kl - config.entropy_coef * terms.entropy_term +
         config.imitation.coef * terms.imitation_term;
}

PolicyLossStats token_weights(const PolicyLossConfig& config, const PolicyLossInput& input,
                              const LossCounts& counts, std::span<double> weight,
                              std::span<double> correction) {
  TR_CHECK(weight.size() == input.mask.size() && correction.size() == input.mask.size(),
           "{} tokens, {} weights", input.mask.size(), weight.size());
  std::ranges::fill(weight, 0.0);
  std::ranges::fill(correction, 0.0);
  PolicyLossStats stats;
  SequenceCorrections corrections;
  for_each_sequence(input, [&](std::span<const size_t> rows) {
    corrections.run(config.correction, input, counts, rows, stats);
    for (size_t k = 0; k < rows.size(); ++k) {
      weight[rows[k]] = token_weight(config.aggregation, counts, input.trajectory[rows[k]]);
      correction[rows[k]] = corrections.weight[k];
    }
  });
  return stats;
}

PolicyLossResult policy_loss(const PolicyLossConfig& config, const PolicyLossInput& input,
                             const LossCounts& counts, std::span<float> dlogprob,
                             std::span<float> dentropy) {
  check_lengths(config, input, dlogprob, dentropy);
  std::ranges::fill(dlogprob, 0.0f);
  std::ranges::fill(dentropy, 0.0f);

  PolicyLossResult result;
  SequenceLoss sequence_loss(config, input, counts, dlogprob, dentropy, result);
  for_each_sequence(input, [&](std::span<const size_t> rows) { sequence_loss.run(rows); });
  result.loss = total_loss(config, result);
  return result;
}

}  // namespace tailrace
