#include "trainer/preference.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/preference.h"
#include "trainer/loss_pass.h"

namespace tailrace {
namespace {

double sum_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum;
}

// A completion as the loss sees it.
struct Half {
  double logprob = 0, reference = 0;
  int64_t tokens = 0;
};

// The measurements of a row; ranks exchange them.
struct RowMeasure {
  double loss = 0;
  double chosen_reward = 0, rejected_reward = 0;  // of an unpaired row one of the two
  double chosen_logprob = 0, rejected_logprob = 0;
  double chosen = 0, rejected = 0;  // how many halves it has of each
};

struct RowResult {
  RowMeasure measure;
  double dchosen = 0, drejected = 0;  // of an unpaired row the first, whichever it is
};

RowResult paired(const PreferenceLossOptions& options, const Half& chosen, const Half& rejected) {
  const PairLoss loss = pair_loss(options, {.chosen = chosen.logprob,
                                            .rejected = rejected.logprob,
                                            .ref_chosen = chosen.reference,
                                            .ref_rejected = rejected.reference,
                                            .chosen_tokens = chosen.tokens,
                                            .rejected_tokens = rejected.tokens});
  return {.measure = {.loss = loss.loss,
                      .chosen_reward = loss.chosen_reward,
                      .rejected_reward = loss.rejected_reward,
                      .chosen_logprob = chosen.logprob,
                      .rejected_logprob = rejected.logprob,
                      .chosen = 1,
                      .rejected = 1},
          .dchosen = loss.dchosen,
          .drejected = loss.drejected};
}

RowResult unpaired(const PreferenceLossOptions& options, const Half& half, bool desirable,
                   double kl) {
  const UnpairedLoss loss = unpaired_loss(options, {.logprob = half.logprob,
                                                    .ref = half.reference,
                                                    .desirable = desirable,
                                                    .kl = kl,
                                                    .tokens = half.tokens});
  RowResult result{.measure = {}, .dchosen = loss.dlogprob};
  RowMeasure& m = result.measure;
  m.loss = loss.loss;
  (desirable ? m.chosen_reward : m.rejected_reward) = loss.reward;
  (desirable ? m.chosen_logprob : m.rejected_logprob) = half.logprob;
  (desirable ? m.chosen : m.rejected) = 1;
  return result;
}

// The mean loss of some rows: of both sequences of each, or of the completion alone where rows are
// unpaired.
class PreferencePass : public LossPass {
 public:
  // `kl`: z, where they are unpaired. Borrows all.
  PreferencePass(const PreferenceLossOptions& options, const PreferenceSequences& from,
                 std::span<const size_t> rows, double kl)
      : options_(options), from_(from), rows_(rows), kl_(kl) {
    for (const size_t row : rows)
      for (size_t half = 0; half < together(); ++half) {
        const size_t i = 2 * row + half;
        halves_.push_back({.reference = from.reference.empty() ? 0 : from.reference[i],
                           .tokens = std::ssize(from.sequences[i].targets)});
      }
  }

  size_t together() const { return is_paired(options_.kind) ? 2 : 1; }  // sequences of a row
  std::vector<PackedSequence> views() const {
    std::vector<PackedSequence> views;
    for (const size_t row : rows_)
      for (size_t half = 0; half < together(); ++half) views.push_back(from_.view(2 * row + half));
    return views;
  }

  Wants wants() const override { return {}; }

  void add(size_t, size_t begin, size_t end, const PackedForward::Output& output,
           std::span<float> dlogprob, std::span<float>) override {
    std::span<const float> logprobs = output.logprob;
    for (size_t i = begin; i < end; ++i) {
      halves_[i].logprob = sum_of(logprobs.first(targets(i)));
      logprobs = logprobs.subspan(targets(i));
    }
    const double weight = 1 / static_cast<double>(rows_.size());
    const auto give = [&](size_t i, double gradient) {
      std::ranges::fill(dlogprob.first(targets(i)), static_cast<float>(weight * gradient));
      dlogprob = dlogprob.subspan(targets(i));
    };
    for (size_t i = begin; i < end; i += together()) {
      const RowResult result = measure(i / together());
      give(i, result.dchosen);
      if (together() == 2) give(i + 1, result.drejected);
    }
  }

  // In the order of the rows, since slots are.
  void end(const GradientTree& tree) override { measures_ = tree.gather_values(measures_); }

  // Without a gradient. `logprobs`: of both sequences of each row.
  void measure_all(std::span<const double> logprobs) {
    for (size_t i = 0; i < halves_.size(); ++i) halves_[i].logprob = logprobs[i * 2 / together()];
    for (size_t row = 0; row < rows_.size(); ++row) measure(row);
  }

  // Means over the rows, with TRL's names behind `prefix`.
  MetricList metrics(std::string_view prefix) const;

 private:
  size_t targets(size_t i) const { return static_cast<size_t>(halves_[i].tokens); }
  RowResult measure(size_t row) {
    const RowResult result =
        together() == 2 ? paired(options_, halves_[2 * row], halves_[2 * row + 1])
                        : unpaired(options_, halves_[row], from_.desirable[rows_[row]] != 0, kl_);
    measures_.push_back(result.measure);
    return result;
  }

  const PreferenceLossOptions& options_;
  const PreferenceSequences& from_;
  std::span<const size_t> rows_;
  double kl_;
  std::vector<Half> halves_;  // of each sequence
  std::vector<RowMeasure> measures_;
};

MetricList PreferencePass::metrics(std::string_view prefix) const {
  RowMeasure sum;
  double right = 0, pairs = 0;
  for (const RowMeasure& m : measures_) {
    sum.loss += m.loss;
    sum.chosen_reward += m.chosen_reward;
    sum.rejected_reward += m.rejected_reward;
    sum.chosen_logprob += m.chosen_logprob;
    sum.rejected_logprob += m.rejected_logprob;
    sum.chosen += m.chosen;
    sum.rejected += m.rejected;
    if (m.chosen == 0 || m.rejected == 0) continue;
    ++pairs;
    // A tie is no preference.
    right += m.chosen_reward > m.rejected_reward ? 1 : 0;
  }
  MetricList metrics;
  const auto add = [&](std::string_view name, double total, double count) {
    if (count > 0) metrics.emplace_back(fmt::format("{}{}", prefix, name), total / count);
  };
  metrics.emplace_back(fmt::format("preference/{}loss", prefix),
                       sum.loss / static_cast<double>(measures_.size()));
  add("rewards/chosen", sum.chosen_reward, sum.chosen);
  add("rewards/rejected", sum.rejected_reward, sum.rejected);
  add("rewards/accuracies", right, pairs);
  if (sum.chosen > 0 && sum.rejected > 0)
    add("rewards/margins", sum.chosen_reward / sum.chosen - sum.rejected_reward / sum.rejected, 1);
  add("logps/chosen", sum.chosen_logprob, sum.chosen);
  add("logps/rejected", sum.rejected_logprob, sum.rejected);
  return metrics;
}

PreferenceSequences::Sequence sequence_of(const PreferenceRow& row,
                                          const std::vector<TokenId>& completion) {
  PreferenceSequences::Sequence sequence{.tokens = row.prompt, .targets = {}};
  sequence.tokens.insert(sequence.tokens.end(), completion.begin(), completion.end());
  sequence.targets.resize(completion.size());
  std::iota(sequence.targets.begin(), sequence.targets.end(),
            static_cast<int32_t>(row.prompt.size()));
  return sequence;
}

// Of each row the next one of the file that has another prompt, from its end on from its beginning;
// its own, where there is none.
std::vector<size_t> mismatches_of(const std::vector<PreferenceRow>& rows) {
  const size_t n = rows.size();
  std::vector<size_t> next(n);
  // Twice around, from behind: the second time each row knows what is behind the end.
  for (size_t step = 2 * n; step-- > 0;) {
    const size_t row = step % n, after = (step + 1) % n;
    next[row] = rows[after].prompt != rows[row].prompt ? after
                : step + 1 < 2 * n                     ? next[after]
                                                       : row;
  }
  // With one prompt alone all that is found is a row of the same.
  for (size_t row = 0; row < n; ++row)
    if (rows[next[row]].prompt == rows[row].prompt) next[row] = row;
  return next;
}

std::vector<size_t> all_rows(size_t rows) {
  std::vector<size_t> all(rows);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

RowBatches batches_of(const RowOptions& options, size_t rows, int64_t batch_rows, bool unpaired,
                      uint64_t seed) {
  return all_batches(options, [&](int64_t epoch) {
    RowBatches batches = batches_of_rows(rows, batch_rows, seed, epoch);
    // A mean divergence of one row is noise: a rest of one goes with the update before it.
    if (unpaired && batches.size() > 1 && batches.back().size() == 1) {
      const size_t last = batches.back().front();
      batches.pop_back();
      batches.back().push_back(last);
    }
    return batches;
  });
}

}  // namespace

PreferenceSequences::PreferenceSequences(const std::vector<PreferenceRow>& rows,
                                         int64_t max_tokens) {
  const bool is_unpaired = !rows.empty() && !rows.front().is_pair();
  const std::vector<size_t> mismatches = is_unpaired ? mismatches_of(rows) : std::vector<size_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const PreferenceRow& row = rows[i];
    desirable.push_back(row.desirable ? 1 : 0);
    sequences.push_back(sequence_of(row, row.chosen));
    if (row.is_pair()) {
      sequences.push_back(sequence_of(row, row.rejected));
      continue;
    }
    // A long prompt with a long completion of another row may be longer than any row.
    std::vector<TokenId> other = rows[mismatches[i]].chosen;
    const auto room = static_cast<size_t>(max_tokens) - row.prompt.size();
    other.resize(std::min(other.size(), room));
    sequences.push_back(sequence_of(row, other));
  }
}

PackedSequence PreferenceSequences::view(size_t sequence) const {
  const Sequence& s = sequences[sequence];
  return {.tokens = s.tokens, .targets = s.targets};
}

std::vector<PackedSequence> PreferenceSequences::views() const {
  std::vector<PackedSequence> all;
  for (size_t i = 0; i < sequences.size(); ++i) all.push_back(view(i));
  return all;
}

int64_t most_pair_tokens(const std::vector<PreferenceRow>& rows) {
  int64_t most = 0;
  for (const PreferenceRow& row : rows)
    most = std::max<int64_t>(
        most, 2 * std::ssize(row.prompt) + std::ssize(row.chosen) + std::ssize(row.rejected));
  return most;
}

PreferenceTask::PreferenceTask(PolicyTrainer& trainer, const PreferenceOptions& options,
                               const std::vector<PreferenceRow>& rows,
                               const std::vector<PreferenceRow>& held_out, uint64_t seed)
    : RowTask(options, !held_out.empty(),
              batches_of(options, rows.size(), options.batch_rows, !is_paired(options.loss.kind),
                         seed)),
      trainer_(trainer),
      options_(options),
      train_(rows, trainer.max_sequence_tokens()),
      held_out_(held_out, trainer.max_sequence_tokens()) {
  for (const auto* all : {&rows, &held_out})
    for (const PreferenceRow& row : *all)
      TR_CHECK(row.is_pair() == is_paired(options_.loss.kind), "rows of the other kind");
  trainer_.reset_optimizer(options.optim);
}

size_t PreferenceTask::num_reference() const {
  return train_.sequences.size() + held_out_.sequences.size();
}

std::optional<std::vector<double>> PreferenceTask::score_reference(
    const std::function<bool()>& stops) {
  std::vector<double> reference;
  for (const PreferenceSequences* part : {&train_, &held_out_}) {
    const std::vector<PackedSequence> all = part->views();
    if (!sums_of(all, stops, reference)) return std::nullopt;
  }
  return reference;
}

// In pieces of whole rows, about a pass each: in between it shows that it lives.
bool PreferenceTask::sums_of(std::span<const PackedSequence> sequences,
                             const std::function<bool()>& stops, std::vector<double>& sums) {
  for (size_t begin = 0; begin < sequences.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    for (; end < sequences.size() && tokens < trainer_.options().microbatch_tokens; end += 2)
      tokens += std::ssize(sequences[end].tokens) + std::ssize(sequences[end + 1].tokens);
    beat();
    if (stops && stops()) return false;
    for (const std::vector<float>& logprobs : trainer_.score(sequences.subspan(begin, end - begin)))
      sums.push_back(sum_of(logprobs));
    begin = end;
  }
  return true;
}

void PreferenceTask::set_reference(std::vector<double> logprobs) {
  TR_CHECK(logprobs.size() == num_reference(), "{} of {}", logprobs.size(), num_reference());
  const auto middle = logprobs.begin() + std::ssize(train_.sequences);
  train_.reference.assign(logprobs.begin(), middle);
  held_out_.reference.assign(middle, logprobs.end());
}

double PreferenceTask::mean_divergence(const PreferenceSequences& from,
                                       std::span<const size_t> rows) {
  std::vector<PackedSequence> mismatches;
  for (const size_t row : rows) mismatches.push_back(from.view(2 * row + 1));
  const std::vector<std::vector<float>> logprobs = trainer_.score(mismatches);
  double sum = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    sum += sum_of(logprobs[i]) - from.reference[2 * rows[i] + 1];
  return std::max(0.0, sum / static_cast<double>(rows.size()));
}

MetricList PreferenceTask::update_rows(std::span<const size_t> rows, double done) {
  TR_CHECK(!needs_reference(options_.loss.kind) || !train_.reference.empty(),
           "set_reference() comes first");
  const bool pairs = is_paired(options_.loss.kind);
  const double kl = pairs ? 0 : mean_divergence(train_, rows);
  PreferencePass pass(options_.loss, train_, rows, kl);
  const Optimizer::Report report = trainer_.row_update(pass.views(), pass, pass.together(), done);
  MetricList metrics = pass.metrics("");
  if (!pairs) metrics.emplace_back("preference/kl", kl);
  metrics.insert(metrics.end(), {{"preference/grad_norm", report.grad_norm},
                                 {"preference/lr", report.lr},
                                 {"preference/update_skipped", report.skipped ? 1.0 : 0.0}});
  return metrics;
}

MetricList PreferenceTask::evaluate() {
  const std::vector<size_t> rows = all_rows(held_out_.sequences.size() / 2);
  const double kl = is_paired(options_.loss.kind) ? 0 : mean_divergence(held_out_, rows);
  PreferencePass pass(options_.loss, held_out_, rows, kl);
  std::vector<double> sums;
  sums_of(held_out_.views(), {}, sums);
  pass.measure_all(sums);
  return pass.metrics("eval_");
}

}  // namespace tailrace
