#include "trainer/policy_trainer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/embedding.h"

namespace tailrace {
namespace {

// Where each slot begins: sequences in order, cut by their share of the tokens. Depends on the
// batch and on the number of slots only, never on micro-batches.
std::vector<size_t> slot_offsets(std::span<const PackedSequence> sequences, size_t slots) {
  int64_t total = 0, before = 0;
  for (const PackedSequence& s : sequences) total += static_cast<int64_t>(s.tokens.size());
  std::vector<size_t> offsets = {0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto slot = static_cast<size_t>(before * static_cast<int64_t>(slots) / total);
    while (offsets.size() <= slot) offsets.push_back(i);
    before += static_cast<int64_t>(sequences[i].tokens.size());
  }
  // Slots behind the last sequence are empty, and clear their buffer all the same.
  offsets.resize(slots + 1, sequences.size());
  return offsets;
}

void clear(Parameters& parameters) { std::ranges::fill(parameters.flat(), 0.0f); }

void add_to(const Stream& stream, const Parameters& from, Parameters& to) {
  auto size = static_cast<int64_t>(from.flat().size());
  constexpr int64_t kWidth = 16;  // the layout is padded to it
  static_assert(kMemoryAlignment == kWidth * sizeof(float));
  // add() wants a matrix; the flat array is one of rows of 16.
  TR_CHECK(size % kWidth == 0);
  add(stream, {.x = ConstMatrix(from.flat().data(), size / kWidth, kWidth),
               .y = Matrix(to.flat().data(), size / kWidth, kWidth)});
}

std::vector<PackedSequence> packed_views(const TrainBatch& batch, const Minibatch& minibatch) {
  std::vector<PackedSequence> views;
  for (size_t i = minibatch.begin; i < minibatch.end; ++i)
    views.push_back(batch.sequences[i].packed());
  return views;
}

// The columns of PolicyLossInput for a few sequences.
struct LossColumns {
  std::vector<float> old_logprob, behaviour_logprob, ref_logprob, advantage;
  std::vector<int32_t> sequence, turn, trajectory;
  std::vector<uint8_t> mask, positive;

  explicit LossColumns(std::span<const TrainSequence> sequences) {
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    int32_t index = 0;
    for (const TrainSequence& s : sequences) {
      append(old_logprob, s.old_logprobs);
      append(behaviour_logprob, s.behaviour_logprobs);
      append(ref_logprob, s.ref_logprobs);
      append(advantage, s.advantages);
      append(turn, s.turns);
      sequence.insert(sequence.end(), s.targets.size(), index++);
      trajectory.insert(trajectory.end(), s.targets.size(), s.trajectory);
      positive.insert(positive.end(), s.targets.size(), s.positive);
    }
    mask.assign(sequence.size(), 1);
  }
};

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

// What the weights of what sampled against what the step starts from leave of the trained tokens:
// of all, and by how many versions ago they were sampled. After prepare_step().
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

// What truncation cut of the distribution that is trained, mean a token.
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

}  // namespace

PolicyTrainer::PolicyTrainer(const Stream& stream, const ModelConfig& config,
                             const TrainOptions& train, int64_t max_sequence_tokens, Dtype compute,
                             std::shared_ptr<const PackedWeights> base)
    : stream_(stream),
      train_(train),
      model_(config, max_sequence_tokens),
      base_(std::move(base)),
      parameters_(model_.trained()),
      packed_(config.lora ? PackedWeights(stream_, base_, config, parameters_)
                          : PackedWeights(stream_, config, parameters_, compute)),
      forward_(model_, pack_limits(train.microbatch_tokens, max_sequence_tokens),
               max_sequence_tokens,
               /*with_backward=*/true, num_threads(stream)),
      update_loads_(config),
      step_loads_(config) {
  TR_CHECK(train_.balance_bias_rate == 0 || config.choice_bias, "no bias to balance experts by");
  if (train_.balance_coef < 0) train_.balance_coef = config.balance_coef;
  for (int64_t i = 0; i < num_gradient_buffers(train_.gradient_slots); ++i)
    gradients_.push_back(std::make_unique<Parameters>(model_.trained()));
}

int64_t num_gradient_buffers(int64_t slots) {
  // ceil(log2(slots)) + 1.
  return std::bit_width(static_cast<uint64_t>(slots - 1)) + 1;
}

void PolicyTrainer::reset_optimizer(const OptimOptions& options, int64_t total_updates) {
  // First without one: two would be the peak of the whole run.
  optimizer_.reset();
  optimizer_ = std::make_unique<Optimizer>(stream_, model_.trained(), options, total_updates);
}

std::vector<MemoryItem> PolicyTrainer::memory(const ModelConfig& config, const TrainOptions& train,
                                              int64_t max_sequence_tokens, int threads,
                                              const Extras& extras) {
  const ParameterLayout layout = ParameterLayout::trained(config);
  const int64_t weights = Parameters::bytes(layout),
                packed = PackedWeights::bytes(config, extras.compute);
  std::vector<MemoryItem> items = {
      {config.lora ? "adapter (fp32 master)" : "weights (fp32 master)", weights},
      {"their packed form", config.lora ? PackedWeights::adapter_bytes(config) : packed},
      {"gradients",
       weights * (num_gradient_buffers(train.gradient_slots) + (extras.streams ? 1 : 0))},
      {"AdamW moments", Optimizer::bytes(layout)}};
  if (config.lora) items.push_back({"frozen weights, packed", packed});
  // Never trained, so it has no second form; that of an adapter is its base.
  if (extras.keeps_reference && !config.lora)
    items.push_back({"reference weights, packed (algo.kl)", packed});
  for (MemoryItem& item : PackedForward::memory(
           config, pack_limits(train.microbatch_tokens, max_sequence_tokens), max_sequence_tokens,
           /*with_backward=*/true, threads))
    items.push_back(std::move(item));
  items.push_back({"rotary positions", Model::bytes(config, max_sequence_tokens)});
  return items;
}

void PolicyTrainer::warm_up() {
  const int64_t longest = forward_.max_sequence_tokens();
  if (longest < 2) return;
  const std::vector<TokenId> tokens(static_cast<size_t>(longest), 0);
  // All but the first token count: no sequence of a run has more targets.
  std::vector<int32_t> targets(tokens.size() - 1);
  std::iota(targets.begin(), targets.end(), 1);
  std::vector<PackedSequence> sequences;
  int64_t left = std::max(forward_.limits().max_tokens, longest);
  while (left >= 2 && std::ssize(sequences) < forward_.limits().max_sequences) {
    const auto length = static_cast<size_t>(std::min(left, longest));
    sequences.push_back({.tokens = std::span(tokens).first(length),
                         .targets = std::span(targets).first(length - 1)});
    left -= static_cast<int64_t>(length);
  }
  const auto [logprob, entropy] =
      forward_.forward(stream_, packed_, sequences, {.entropy = true, .backward = true});
  // Rows without a gradient would be left out of the head's.
  dlogprob_.assign(logprob.size(), 1.0f);
  dentropy_.assign(entropy.size(), 1.0f);
  forward_.backward(stream_, packed_, dlogprob_, dentropy_, *gradients_.front(),
                    {.weight = train_.balance_coef, .loads = &update_loads_});
  clear(*gradients_.front());
  update_loads_.clear();
}

void PolicyTrainer::join(Collective* ranks) {
  ranks_ = ranks;
  if (ranks_ == nullptr) return;
  TR_CHECK(std::has_single_bit(num_ranks()) && train_.gradient_slots % ranks_->size() == 0,
           "{} ranks of {} slots", ranks_->size(), train_.gradient_slots);
  ranks_->broadcast(std::as_writable_bytes(parameters_.flat()));
  optimizer().share(*ranks_);
  weights_changed();
}

std::vector<float> PolicyTrainer::gather_values(std::vector<float> own) const {
  if (ranks_ == nullptr) return own;
  std::vector<float> values;
  for (const std::vector<std::byte>& part : ranks_->gather(std::as_bytes(std::span(own)))) {
    if (part.empty()) continue;  // memcpy() wants an address also of nothing
    const size_t begin = values.size();
    values.resize(begin + part.size() / sizeof(float));
    std::memcpy(values.data() + begin, part.data(), part.size());
  }
  return values;
}

template <class Report>
void PolicyTrainer::gather_reports(std::span<Report> slots) const {
  static_assert(std::is_trivially_copyable_v<Report>);
  if (ranks_ == nullptr) return;
  const size_t each = slots.size() / num_ranks();
  const auto all = ranks_->gather(std::as_bytes(slots.subspan(rank() * each, each)));
  for (size_t r = 0; r < all.size(); ++r) {
    TR_CHECK(all[r].size() == each * sizeof(Report));
    std::memcpy(&slots[r * each], all[r].data(), all[r].size());
  }
}

// Of the ranks, in their order: whole numbers, but for the terms of the loss.
void PolicyTrainer::gather_loads() {
  if (ranks_ == nullptr || update_loads_.num_experts == 0) return;
  const std::array own = {update_loads_.tokens, update_loads_.given, update_loads_.moved};
  const auto counts = ranks_->gather(std::as_bytes(std::span(own)));
  const auto choices = ranks_->gather(std::as_bytes(std::span(update_loads_.choices)));
  const auto losses = ranks_->gather(std::as_bytes(std::span(update_loads_.losses)));
  const auto read = [](const std::vector<std::byte>& from, auto& to) {
    TR_CHECK(from.size() == std::as_bytes(std::span(to)).size());
    std::memcpy(to.data(), from.data(), from.size());
  };
  update_loads_.clear();
  ExpertLoads part(model_.config());
  for (size_t r = 0; r < num_ranks(); ++r) {
    std::array<int64_t, 3> count{};
    read(counts[r], count);
    part.tokens = count[0];
    part.given = count[1];
    part.moved = count[2];
    read(choices[r], part.choices);
    read(losses[r], part.losses);
    update_loads_.add(part);
  }
}

Optimizer& PolicyTrainer::optimizer() {
  TR_CHECK(optimizer_ != nullptr, "reset_optimizer() comes first");
  return *optimizer_;
}

void PolicyTrainer::set_reference_to_base() {
  TR_CHECK(base_ != nullptr, "there is no base");
  reference_ = base_;
}

void PolicyTrainer::set_reference(const Parameters& parameters) {
  reference_ =
      std::make_unique<PackedWeights>(stream_, model_.config(), parameters, packed_.dtype());
}

std::vector<std::vector<float>> PolicyTrainer::score(std::span<const PackedSequence> sequences) {
  return score_with(packed_, sequences);
}

std::vector<std::vector<float>> PolicyTrainer::score_with(
    const PackedWeights& weights, std::span<const PackedSequence> sequences) {
  const std::vector<size_t> shares = slot_offsets(sequences, num_ranks());
  const size_t first = shares[rank()];
  const auto own = sequences.subspan(first, shares[rank() + 1] - first);
  std::vector<float> logprobs;
  for (auto [begin, end] : pack(own, forward_.limits())) {
    auto part = forward_.forward(stream_, weights, own.subspan(begin, end - begin), {}).logprob;
    logprobs.insert(logprobs.end(), part.begin(), part.end());
  }
  logprobs = gather_values(std::move(logprobs));
  std::vector<std::vector<float>> result;
  auto next = logprobs.begin();
  for (const PackedSequence& sequence : sequences) {
    result.emplace_back(next, next + std::ssize(sequence.targets));
    next += std::ssize(sequence.targets);
  }
  return result;
}

void PolicyTrainer::accumulate(std::span<const PackedSequence> sequences, const Pass& pass) {
  const auto slots = static_cast<size_t>(train_.gradient_slots), each = slots / num_ranks();
  const size_t begin = rank() * each;
  update_loads_.clear();  // of an update that a rank was lost in
  accumulate_slots(sequences, slot_offsets(sequences, slots), begin, begin + each, 0, pass);
  // Further up the same tree.
  if (ranks_ != nullptr) ranks_->sum(gradients_.front()->flat());
  gather_loads();
}

void PolicyTrainer::accumulate_slots(std::span<const PackedSequence> sequences,
                                     std::span<const size_t> slot_offsets, size_t begin, size_t end,
                                     size_t depth, const Pass& pass) {
  if (end - begin == 1) {
    clear(*gradients_[depth]);
    accumulate_slot(sequences, begin, slot_offsets[begin], slot_offsets[end], *gradients_[depth],
                    pass);
    return;
  }
  // The left half takes the larger part, so that the depth is ceil(log2(slots)).
  size_t middle = begin + (end - begin + 1) / 2;
  accumulate_slots(sequences, slot_offsets, begin, middle, depth, pass);
  accumulate_slots(sequences, slot_offsets, middle, end, depth + 1, pass);
  add_to(stream_, *gradients_[depth + 1], *gradients_[depth]);
}

void PolicyTrainer::accumulate_slot(std::span<const PackedSequence> sequences, size_t slot,
                                    size_t begin, size_t end, Parameters& gradients,
                                    const Pass& pass) {
  for (auto [first, last] : pack(sequences.subspan(begin, end - begin), forward_.limits())) {
    auto part = sequences.subspan(begin + first, last - first);
    PackedForward::Output output =
        forward_.forward(stream_, packed_, part, {.entropy = pass.with_entropy, .backward = true});
    dlogprob_.resize(output.logprob.size());
    dentropy_.resize(pass.entropy_gradient ? output.logprob.size() : 0);
    pass.loss(slot, begin + first, begin + last, output, dlogprob_, dentropy_);
    forward_.backward(stream_, packed_, dlogprob_, dentropy_, gradients,
                      {.weight = pass.balance_weight, .loads = &update_loads_});
  }
}

MetricList PolicyTrainer::sft_update(std::span<const PackedSequence> sequences) {
  TR_CHECK(!sequences.empty());
  int64_t targets = 0;
  int64_t tokens = 0;
  for (const PackedSequence& s : sequences) {
    targets += std::ssize(s.targets);
    tokens += std::ssize(s.tokens);
  }
  std::vector<double> sums(static_cast<size_t>(train_.gradient_slots));
  auto cross_entropy = [&](size_t slot, size_t, size_t, const PackedForward::Output& output,
                           std::span<float> dlogprob, std::span<float>) {
    for (float l : output.logprob) sums[slot] -= l;
    std::ranges::fill(dlogprob, static_cast<float>(-1.0 / static_cast<double>(targets)));
  };
  accumulate(sequences, {.balance_weight = balance_weight(tokens), .loss = cross_entropy});
  gather_reports(std::span(sums));
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  update(*gradients_.front());
  step_loads_.clear();
  const Optimizer::Report report = optimizer().take_reports().back();
  return {{"sft/loss", sum / static_cast<double>(targets)},
          {"sft/tokens", static_cast<double>(targets)},
          {"sft/grad_norm", report.grad_norm},
          {"sft/lr", report.lr},
          {"sft/update_skipped", report.skipped ? 1.0 : 0.0}};
}

MetricList PolicyTrainer::sft_evaluation(std::span<const PackedSequence> sequences) {
  TR_CHECK(!sequences.empty());
  double sum = 0;
  int64_t targets = 0, likeliest = 0;
  for (auto [begin, end] : pack(sequences, forward_.limits())) {
    const auto part = sequences.subspan(begin, end - begin);
    for (float l : forward_.forward(stream_, packed_, part, {}).logprob) sum -= l;
    for (uint8_t best : forward_.is_likeliest(stream_, packed_)) {
      likeliest += best;
      ++targets;
    }
  }
  return {
      {"sft/eval_loss", sum / static_cast<double>(targets)},
      {"sft/eval_token_accuracy", static_cast<double>(likeliest) / static_cast<double>(targets)}};
}

void PolicyTrainer::prepare_step(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss) {
  std::vector<PackedSequence> stale;
  std::vector<TrainSequence*> stale_owners;
  for (TrainSequence& sequence : batch.sequences) {
    sequence.old_logprobs = sequence.recorded_logprobs;
    // No second pass for what this version sampled in our class: rollout's bits are the trainer's.
    size_t fresh = 0;
    while (fresh < sequence.versions.size() && sequence.is_fresh(fresh, version)) ++fresh;
    if (fresh == sequence.versions.size()) continue;
    stale.push_back(sequence.packed());
    stale_owners.push_back(&sequence);
  }
  std::vector<std::vector<float>> scored = score(stale);
  for (size_t i = 0; i < stale.size(); ++i) {
    TrainSequence& sequence = *stale_owners[i];
    for (size_t k = 0; k < sequence.versions.size(); ++k) {
      // These only: the others have theirs. (An install drops all KV, so older tokens in front do
      // not change what the present version samples behind them.)
      if (!sequence.is_fresh(k, version)) sequence.old_logprobs[k] = scored[i][k];
    }
  }
  if (loss.kl.coef == 0 || loss.kl.target != KlTarget::kReference) return;
  TR_CHECK(reference_ != nullptr, "a KL term against a reference needs set_reference()");
  std::vector<PackedSequence> all = packed_views(batch, {0, batch.sequences.size()});
  // Its routers are others.
  for (PackedSequence& sequence : all) sequence.choices = {};
  // Once a step and not once an update: neither the reference nor the tokens change in between.
  std::vector<std::vector<float>> reference = score_with(*reference_, all);
  for (size_t i = 0; i < all.size(); ++i) batch.sequences[i].ref_logprobs = std::move(reference[i]);
}

void PolicyTrainer::UpdateReport::add(const UpdateReport& part) {
  loss.add(part.loss);
  current_tokens += part.current_tokens;
  mismatch_abs_sum += part.mismatch_abs_sum;
  mismatch_abs_max = std::max(mismatch_abs_max, part.mismatch_abs_max);
}

PolicyTrainer::UpdateReport PolicyTrainer::backward(const TrainBatch& batch,
                                                    const Minibatch& minibatch,
                                                    const PolicyLossConfig& loss,
                                                    const LossCounts& counts, int64_t version,
                                                    Parameters* sum) {
  std::vector<UpdateReport> slots(static_cast<size_t>(train_.gradient_slots));
  std::vector<float> seen;  // by the sink, of the sequences of this rank
  std::vector<PackedSequence> views = packed_views(batch, minibatch);
  auto sequences =
      std::span(batch.sequences).subspan(minibatch.begin, minibatch.end - minibatch.begin);

  // Another rank may listen to what this one computes.
  const bool listening = logprob_sink_ || ranks_ != nullptr;
  auto pass_loss = [&](size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
                       std::span<float> dlogprob, std::span<float> dentropy) {
    UpdateReport& report = slots[slot];
    LossColumns columns(sequences.subspan(begin, end - begin));
    report.loss.add(policy_loss(loss,
                                {.logprob = output.logprob,
                                 .old_logprob = columns.old_logprob,
                                 .behaviour_logprob = columns.behaviour_logprob,
                                 .ref_logprob = columns.ref_logprob,
                                 .entropy = output.entropy,
                                 .advantage = columns.advantage,
                                 .mask = columns.mask,
                                 .sequence = columns.sequence,
                                 .turn = columns.turn,
                                 .trajectory = columns.trajectory,
                                 .positive = columns.positive},
                                counts, dlogprob, dentropy));
    if (listening) seen.insert(seen.end(), output.logprob.begin(), output.logprob.end());
    size_t row = 0;
    for (size_t i = begin; i < end; ++i) {
      for (size_t k = 0; k < sequences[i].targets.size(); ++k, ++row) {
        if (sequences[i].versions[k] != version) continue;
        double difference =
            std::abs(double{output.logprob[row]} - sequences[i].recorded_logprobs[k]);
        report.current_tokens += 1;
        report.mismatch_abs_sum += difference;
        report.mismatch_abs_max = std::max(report.mismatch_abs_max, difference);
      }
    }
  };
  int64_t tokens = 0;
  for (const PackedSequence& view : views) tokens += std::ssize(view.tokens);
  // Entropy is wanted for the metrics even where no gradient goes through it.
  const Pass pass{.with_entropy = true,
                  .entropy_gradient = loss.entropy_coef != 0,
                  .balance_weight = balance_weight(tokens),
                  .loss = pass_loss};
  if (sum != nullptr && train_.gradient_slots == 1) {
    accumulate_slot(views, 0, 0, views.size(), *sum, pass);
  } else {
    accumulate(views, pass);
    if (sum != nullptr) add_to(stream_, *gradients_.front(), *sum);
  }
  gather_reports(std::span(slots));
  if (listening) {
    seen = gather_values(std::move(seen));
    size_t row = 0;
    for (const TrainSequence& sequence : sequences) {
      if (logprob_sink_)
        logprob_sink_(sequence, std::span(seen).subspan(row, sequence.targets.size()));
      row += sequence.targets.size();
    }
  }
  UpdateReport report;
  for (const UpdateReport& slot : slots) report.add(slot);
  return report;
}

PolicyTrainer::UpdateReport PolicyTrainer::policy_update(const TrainBatch& batch,
                                                         const Minibatch& minibatch,
                                                         const PolicyLossConfig& loss,
                                                         int64_t version) {
  UpdateReport report = start_policy_update(batch, minibatch, loss, version);
  report.optimizer = optimizer().take_reports().back();
  return report;
}

PolicyTrainer::UpdateReport PolicyTrainer::start_policy_update(const TrainBatch& batch,
                                                               const Minibatch& minibatch,
                                                               const PolicyLossConfig& loss,
                                                               int64_t version) {
  const LossCounts counts = loss_counts(batch, minibatch);
  TR_CHECK(counts.tokens > 0);
  UpdateReport report = backward(batch, minibatch, loss, counts, version);
  update(*gradients_.front());
  return report;
}

void PolicyTrainer::update(const Parameters& gradients) {
  optimizer().apply(gradients, parameters_);
  // The host moves these biases, so it has to know. Nothing else waits for an update here.
  if (train_.balance_bias_rate != 0 && !optimizer().last_report().skipped) move_choice_bias();
  // Of an update that was skipped too: it packs the same bits, and to ask would be to wait.
  weights_changed();
  step_loads_.add(update_loads_);
  update_loads_.clear();
}

double PolicyTrainer::balance_weight(int64_t tokens) const {
  return model_.config().num_experts == 0 ? 0 : train_.balance_coef / static_cast<double>(tokens);
}

// 2408.15664: b += rate * sign(mean - choices).
void PolicyTrainer::move_choice_bias() {
  const ModelConfig& config = model_.config();
  const auto rate = static_cast<float>(train_.balance_bias_rate);
  int64_t sparse_layer = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_sparse(layer)) continue;
    const std::span<const int64_t> choices = update_loads_.choices_of(sparse_layer++);
    const std::span<float> bias = layer_tensors(config, parameters_, layer).choice_bias;
    const int64_t all = std::accumulate(choices.begin(), choices.end(), int64_t{0});
    for (size_t e = 0; e < bias.size(); ++e) {
      // In whole numbers: a choice that is the mean moves nothing.
      const int64_t above = choices[e] * config.num_experts - all;
      bias[e] += above < 0 ? rate : above > 0 ? -rate : 0;
    }
  }
}

MetricList PolicyTrainer::take_expert_metrics() {
  const ModelConfig& config = model_.config();
  if (config.num_experts == 0 || step_loads_.tokens == 0) return {};
  const ExpertLoads::Peak peak = step_loads_.peak();
  MetricList metrics = {{"experts/load_max", peak.mean},
                        {"experts/load_max_worst", peak.worst},
                        {"experts/idle_frac", step_loads_.idle_share()},
                        {"experts/balance_loss", step_loads_.balance_loss()}};
  if (step_loads_.given > 0)
    metrics.emplace_back("experts/route_mismatch_frac",
                         share(step_loads_.moved, step_loads_.given));
  step_loads_.clear();
  if (!config.choice_bias) return metrics;
  float largest = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    for (const float bias : layer_tensors(config, parameters_, layer).choice_bias)
      largest = std::max(largest, std::abs(bias));
  metrics.emplace_back("experts/bias_max", largest);
  return metrics;
}

namespace {

// Of the updates of a step.
struct StepReport {
  PolicyLossStats stats;
  PolicyTrainer::UpdateReport first;
  double loss_sum = 0, kl_sum = 0, norm_sum = 0, lr = 0;
  int64_t updates = 0, skipped = 0;

  void add(const PolicyTrainer::UpdateReport& report) {
    if (updates == 0) first = report;
    stats.add(report.loss.stats);
    loss_sum += report.loss.loss;
    kl_sum += report.loss.kl_term;
    ++updates;
  }
  // The optimizer's, of all of them: only now does anybody wait for the updates.
  void add(const std::vector<Optimizer::Report>& reports) {
    // A step that lost a rank may have left some in front.
    for (const Optimizer::Report& report : std::span(reports).last(static_cast<size_t>(updates))) {
      norm_sum += report.grad_norm;
      lr = report.lr;
      skipped += report.skipped;
    }
  }
};

MetricList step_metrics(const TrainBatch& batch, const StepReport& step, int64_t version,
                        const PolicyLossConfig& loss, int64_t ppo_epochs) {
  const auto& [stats, first, loss_sum, kl_sum, norm_sum, lr, updates, skipped] = step;
  MetricList metrics = batch.metrics;
  auto add = [&](const char* name, double value) { metrics.emplace_back(name, value); };
  add("policy/updates", static_cast<double>(updates));
  add("policy/updates_skipped", static_cast<double>(skipped));
  add("policy/loss_tokens", share(stats.tokens, ppo_epochs));
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
  add("policy/kl_old", stats.drift_k3_sum / tokens);
  add("policy/clipfrac_low", static_cast<double>(stats.clipped_low) / tokens);
  add("policy/clipfrac_high", static_cast<double>(stats.clipped_high) / tokens);
  add("policy/clipfrac_dual", static_cast<double>(stats.dual_clipped) / tokens);
  add("policy/ratio_min", stats.ratio_min);
  add("policy/ratio_max", stats.ratio_max);
  add("policy/log_ratio_clamped", static_cast<double>(stats.clamped));
  add("policy/grad_norm", norm_sum / n);
  add("policy/lr", lr);
  // Of the first update: its forward pass ran on the weights that the step started from.
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
  for (const auto& [name, value] : effective_samples(batch, version)) add(name.c_str(), value);
  return metrics;
}

}  // namespace

MetricList PolicyTrainer::policy_step(TrainBatch& batch, int64_t version,
                                      const PolicyLossConfig& loss) {
  prepare_step(batch, version, loss);
  StepReport step;
  for (int64_t epoch = 0; epoch < train_.ppo_epochs; ++epoch) {
    for (const Minibatch& minibatch : split_minibatches(batch, train_.minibatches_per_step))
      step.add(start_policy_update(batch, minibatch, loss, version));
  }
  step.add(optimizer().take_reports());
  MetricList metrics = step_metrics(batch, step, version, loss, train_.ppo_epochs);
  for (auto& metric : take_expert_metrics()) metrics.push_back(std::move(metric));
  return metrics;
}

void PolicyTrainer::StreamedStep::clear() {
  batch = {};
  sums = {};
  std::ranges::fill(gradients.flat(), 0.0f);
  loads.clear();
}

void PolicyTrainer::add_group(StreamedStep& step, TrainBatch group, int64_t version,
                              const PolicyLossConfig& loss) {
  const size_t size = group.sequences.size();
  if (size > 0) {
    prepare_step(group, version, loss);
    const LossCounts one{
        .tokens = 1, .trajectories = 1, .trajectory_tokens = group.trajectory_tokens};
    step.sums.add(backward(group, {0, size}, loss, one, version, &step.gradients));
    // The step's, as its gradients are: one that is given up takes them along.
    step.loads.add(update_loads_);
    update_loads_.clear();
  }
  append(step.batch, std::move(group));
}

MetricList PolicyTrainer::finish(StreamedStep& step, int64_t version,
                                 const PolicyLossConfig& loss) {
  StepReport report;
  const LossCounts counts = loss_counts(step.batch, {0, step.batch.sequences.size()});
  if (counts.tokens > 0) {
    const double weight = common_weight(loss.aggregation, counts);
    for (float& g : step.gradients.flat()) g = static_cast<float>(g * weight);
    PolicyLossResult& sums = step.sums.loss;
    for (double* term : {&sums.loss, &sums.policy_term, &sums.kl_term, &sums.entropy_term})
      *term *= weight;
    update_loads_.add(step.loads);
    update(step.gradients);
    report.add(step.sums);
    report.add(optimizer().take_reports());
  }
  MetricList metrics = step_metrics(step.batch, report, version, loss, /*ppo_epochs=*/1);
  for (auto& metric : take_expert_metrics()) metrics.push_back(std::move(metric));
  return metrics;
}

}  // namespace tailrace
