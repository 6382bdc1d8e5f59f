#include "trainer/step_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/ops/loss_terms.h"
#include "trainer/loss/mismatch.h"

namespace tailrace {

void UpdateReport::add(const UpdateReport& part) {
  loss.add(part.loss);
  current_tokens += part.current_tokens;
  mismatch_abs_sum += part.mismatch_abs_sum;
  mismatch_abs_max = std::max(mismatch_abs_max, part.mismatch_abs_max);
}

void UpdateReport::add_mismatch(std::span<const TrainSequence> sequences,
                                std::span<const float> logprobs, int64_t version) {
  size_t row = 0;
  for (const TrainSequence& sequence : sequences) {
    for (size_t k = 0; k < sequence.targets.size(); ++k, ++row) {
      if (sequence.versions[k] != version) continue;
      const double difference = std::abs(double{logprobs[row]} - sequence.recorded_logprobs[k]);
      current_tokens += 1;
      mismatch_abs_sum += difference;
      mismatch_abs_max = std::max(mismatch_abs_max, difference);
    }
  }
}

void StepReport::add(const UpdateReport& report) {
  if (updates == 0) first = report;
  stats.add(report.loss.stats);
  loss_sum += report.loss.loss;
  kl_sum += report.loss.kl_term;
  imitation_sum += report.loss.imitation_term;
  ++updates;
}

void StepReport::add(const std::vector<Optimizer::Report>& reports) {
  // A step that lost a rank may have left some in front.
  for (const Optimizer::Report& report : std::span(reports).last(static_cast<size_t>(updates))) {
    norm_sum += report.grad_norm;
    lr = report.lr;
    skipped += report.skipped;
  }
}

std::vector<size_t> drift_sample(const TrainBatch& batch, int64_t most_tokens) {
  // A sixteenth of the tokens once forwards is about a fiftieth of what a step computes. A drift
  // that matters is seen in a few hundred of them, and in fewer a single one decides.
  constexpr int64_t kOneOf = 16, kEnough = 1024;
  std::vector<size_t> trained;
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const TrainSequence& sequence = batch.sequences[i];
    if (!sequence.mask.empty() && std::ranges::count(sequence.mask, 0) == std::ssize(sequence.mask))
      continue;
    tokens += std::ssize(sequence.tokens);
    trained.push_back(i);
  }
  if (trained.empty()) return {};
  const int64_t most = std::min(most_tokens, std::max(tokens / kOneOf, kEnough));
  const auto all = std::ssize(trained);
  const int64_t wanted = std::clamp<int64_t>(all * most / tokens, 1, all);
  std::vector<size_t> sample;
  int64_t taken = 0;
  for (int64_t k = 0; k < wanted; ++k) {
    // In the middle of its part, so that it is not always the first member of a group.
    const size_t index = trained[static_cast<size_t>((2 * k + 1) * all / (2 * wanted))];
    const int64_t size = std::ssize(batch.sequences[index].tokens);
    if (!sample.empty() && taken + size > most) continue;
    sample.push_back(index);
    taken += size;
  }
  return sample;
}

double drift_of(const TrainBatch& batch, std::span<const size_t> sample,
                std::span<const std::vector<float>> logprobs) {
  double sum = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const TrainSequence& sequence = batch.sequences[sample[i]];
    for (size_t k = 0; k < sequence.targets.size(); ++k) {
      if (!sequence.is_trained(k)) continue;
      const double drift = clamp_log(double{sequence.old_logprobs[k]} - logprobs[i][k]).value;
      // k3 grows with the ratio itself where a token became likelier, and one such token would
      // outweigh the sample: there it is k2.
      sum += kl_term(drift < 0 ? KlEstimator::kK2 : KlEstimator::kK3, drift).value;
      ++tokens;
    }
  }
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

namespace {

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

double foreign_class_share(const TrainBatch& batch) {
  int64_t foreign = 0, tokens = 0;
  for (const TrainSequence& sequence : batch.sequences) {
    foreign += std::ranges::count(sequence.foreign_class, 1);
    tokens += std::ssize(sequence.foreign_class);
  }
  return share(foreign, tokens);
}

// The effective sample share of the trained tokens, weighted by the step's start over the sampler:
// of all, and by how many versions ago they were sampled. After StepScores::prepare().
MetricList effective_samples(const TrainBatch& batch, int64_t version) {
  constexpr std::array kByStaleness = {"staleness/ess_frac_0", "staleness/ess_frac_1",
                                       "staleness/ess_frac_2", "staleness/ess_frac_3_up"};
  std::vector<double> all;
  std::array<std::vector<double>, kByStaleness.size()> buckets;
  for (const TrainSequence& s : batch.sequences) {
    for (size_t k = 0; k < s.targets.size(); ++k) {
      const double log_weight = double{s.old_logprobs[k]} - s.behaviour_logprobs[k];
      const int64_t staleness = version - s.versions[k];
      const auto bucket = std::clamp<int64_t>(staleness, 0, std::ssize(buckets) - 1);
      all.push_back(log_weight);
      buckets[static_cast<size_t>(bucket)].push_back(log_weight);
    }
  }
  MetricList metrics = {{"mismatch/ess_frac", effective_sample_share(all)}};
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].empty())
      metrics.emplace_back(kByStaleness[i], effective_sample_share(buckets[i]));
  }
  return metrics;
}

// The distance of sampler and trainer on the same tokens, whatever is done about it.
MetricList mismatch_metrics(const TrainBatch& batch) {
  MismatchSums sums;
  for (const TrainSequence& s : batch.sequences) sums.add(s.behaviour_logprobs, s.old_logprobs);
  const Mismatch mean = sums.mean();
  MetricList metrics = {{"mismatch/kl_k1", mean.k1},
                        {"mismatch/abs_prob_diff", mean.abs_prob_diff},
                        {"mismatch/max_prob_diff", mean.max_prob_diff},
                        {"mismatch/chi2", mean.chi2},
                        {"mismatch/ppl_ratio", mean.ppl_ratio}};
  if (mean.correlation) metrics.emplace_back("mismatch/logprob_correlation", *mean.correlation);
  return metrics;
}

// The distance of the policy from its teacher on what it has sampled, mean a token: KL(policy ||
// teacher) in expectation.
double teacher_kl(const TrainBatch& batch) {
  double sum = 0;
  int64_t tokens = 0;
  for (const TrainSequence& s : batch.sequences) {
    tokens += std::ssize(s.targets);
    for (size_t k = 0; k < s.targets.size(); ++k)
      sum += double{s.recorded_logprobs[k]} - s.teacher_logprobs[k];
  }
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

// The mass that truncation cut of the distribution that is trained, mean a token.
double cut_share(const TrainBatch& batch) {
  double sum = 0;
  int64_t tokens = 0;
  for (const TrainSequence& s : batch.sequences) {
    tokens += std::ssize(s.targets);
    for (size_t k = 0; k < s.targets.size(); ++k)
      sum -= std::expm1(double{s.recorded_logprobs[k]} - s.behaviour_logprobs[k]);
  }
  return tokens == 0 ? 0 : sum / static_cast<double>(tokens);
}

// The share of all targets that mask_rejected() took out.
double rejected_share(const TrainBatch& batch) {
  int64_t rejected = 0, tokens = 0;
  for (const TrainSequence& s : batch.sequences) {
    rejected += std::ranges::count(s.mask, 0);
    tokens += std::ssize(s.targets);
  }
  return share(rejected, tokens);
}

}  // namespace

MetricList step_metrics(const TrainBatch& batch, const StepReport& step, int64_t version,
                        const PolicyLossConfig& loss, int64_t ppo_epochs) {
  const auto& [stats, first, loss_sum, kl_sum, imitation_sum, norm_sum, lr, updates, skipped,
               moved] = step;
  MetricList metrics = batch.metrics;
  auto add = [&](const char* name, double value) { metrics.emplace_back(name, value); };
  add("policy/updates", static_cast<double>(updates));
  add("policy/updates_skipped", static_cast<double>(skipped));
  add("policy/loss_tokens", share(stats.tokens, ppo_epochs));
  if (loss.correction.rejected == RejectedTokens::kLeave && rejects(loss.correction.kind))
    add("mismatch/rejected_frac", rejected_share(batch));
  // A step without signal made no update: there is nothing to average, and zeros would read as
  // values.
  if (updates == 0) return metrics;
  auto tokens = static_cast<double>(stats.tokens), n = static_cast<double>(updates);
  add("policy/loss", loss_sum / n);
  add("policy/entropy", stats.entropy_sum / tokens);
  if (loss.kl.coef != 0) {
    add(loss.kl.target == KlTarget::kReference ? "policy/kl_ref" : "policy/kl_behaviour",
        kl_sum / n);
  }
  if (loss.imitation.coef != 0) add("policy/imitation", imitation_sum / n);
  if (loss.distill.has_teacher()) add("distillation/teacher_kl", teacher_kl(batch));
  add("policy/kl_old", stats.drift_k3_sum / tokens);
  if (moved) add("policy/kl_step", *moved);
  add("policy/clipfrac_low", static_cast<double>(stats.clipped_low) / tokens);
  add("policy/clipfrac_high", static_cast<double>(stats.clipped_high) / tokens);
  add("policy/clipfrac_dual", static_cast<double>(stats.dual_clipped) / tokens);
  add("policy/ratio_min", stats.ratio_min);
  add("policy/ratio_max", stats.ratio_max);
  add("policy/log_ratio_clamped", static_cast<double>(stats.clamped));
  add("policy/grad_norm", norm_sum / n);
  add("policy/lr", lr);
  // Only the first update's: its forward pass ran on the weights that the step started from.
  add("mismatch/abs_logprob_diff",
      first.current_tokens == 0
          ? 0.0
          : first.mismatch_abs_sum / static_cast<double>(first.current_tokens));
  add("mismatch/max_logprob_diff", first.mismatch_abs_max);
  // k3 supposes that what sampled could have given every token: where truncation cut, it is short
  // by what was cut.
  add("mismatch/kl", stats.mismatch_k3_sum / tokens + cut_share(batch));
  add("mismatch/foreign_class_frac", foreign_class_share(batch));
  add("mismatch/mean_ratio", stats.correction_sum / tokens);
  add("mismatch/max_ratio", stats.correction_max);
  add("mismatch/masked_frac", static_cast<double>(stats.correction_cut) / tokens);
  if (loss.correction.sequence_mask != 0)
    add("mismatch/sequence_masked_frac", static_cast<double>(stats.sequence_masked) / tokens);
  for (const auto& part : {mismatch_metrics(batch), effective_samples(batch, version)})
    metrics.insert(metrics.end(), part.begin(), part.end());
  return metrics;
}

}  // namespace tailrace
