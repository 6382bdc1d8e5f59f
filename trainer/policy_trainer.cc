#include "trainer/policy_trainer.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "trainer/expert_balancer.h"
#include "trainer/gradient_tree.h"

namespace tailrace {
namespace {

// The largest of those that come one after the other.
MemoryItem optimizer_memory(const ParameterLayout& layout, std::span<const OptimizerKind> kinds,
                            Device device) {
  MemoryItem largest;
  for (const OptimizerKind kind : kinds) {
    const MemoryItem item = {
        kind == OptimizerKind::kAdamW ? "AdamW moments" : "Muon and AdamW (moments, scratch)",
        Optimizer::bytes(layout, kind, device)};
    if (item.bytes > largest.bytes) largest = item;
  }
  return largest;
}

ForBackward kept_of(const TrainOptions& train) {
  return train.recompute ? ForBackward::kInputs : ForBackward::kActivations;
}

}  // namespace

PolicyTrainer::PolicyTrainer(const Stream& stream, const ModelConfig& config,
                             const TrainOptions& train, int64_t max_sequence_tokens,
                             const Elements& compute, std::shared_ptr<const PackedWeights> base,
                             DeviceBytes turn_memory)
    : stream_(stream),
      train_(train),
      model_(config, max_sequence_tokens, Placement::on(stream.device, compute)),
      weights_(stream_, model_, compute.weights, std::move(base)),
      turn_(turn_memory.size > 0 ? std::make_optional<ArenaScope>(turn_memory) : std::nullopt),
      forward_(model_,
               pack_limits(train.microbatch_tokens, max_sequence_tokens, train.share_prefixes),
               max_sequence_tokens, kept_of(train_), num_threads(stream)),
      update_(stream_, model_, forward_, weights_, train_),
      scores_(stream_, forward_, weights_, update_.tree()) {
  // Buffers made in between lie in the memory that the trainer has only during its turn on the
  // device.
  turn_.reset();
}

std::vector<MemoryItem> PolicyTrainer::memory(const ModelConfig& config, const TrainOptions& train,
                                              int64_t max_sequence_tokens, int threads,
                                              const Extras& extras) {
  const ParameterLayout layout = ParameterLayout::trained(config);
  const int64_t weights = Parameters::bytes(layout),
                packed = PackedWeights::bytes(config, extras.compute.weights, extras.device);
  std::vector<MemoryItem> items = {
      {config.lora ? "adapter (fp32 master)" : "weights (fp32 master)", weights},
      {"their packed form",
       config.lora ? PackedWeights::adapter_bytes(config, extras.device) : packed},
      // A step that comes in parts keeps its gathered gradients beside the tree's buffers.
      {"gradients",
       weights * (GradientTree::num_buffers(train.gradient_slots) + (extras.streams ? 1 : 0)),
       /*certain=*/true, /*of_turn=*/true},
      optimizer_memory(layout, extras.optimizers, extras.device)};
  if (config.lora) items.push_back({"frozen weights, packed", packed});
  // Never trained, so it has no second form; that of an adapter goes beside the same base.
  if (extras.keeps_reference)
    items.push_back({config.lora ? "reference adapter, packed (algo.kl)"
                                 : "reference weights, packed (algo.kl)",
                     config.lora ? PackedWeights::adapter_bytes(config, extras.device) : packed});
  for (MemoryItem& item : PackedForward::memory(
           config, pack_limits(train.microbatch_tokens, max_sequence_tokens, train.share_prefixes),
           max_sequence_tokens, kept_of(train), threads,
           Placement::on(extras.device, extras.compute))) {
    item.of_turn = true;
    items.push_back(std::move(item));
  }
  if (extras.has_critic)
    items.push_back({"critic (head, moments, gradients)",
                     Critic::bytes(config.hidden_size, train.gradient_slots)});
  if (extras.device.kind != DeviceKind::kCpu)
    items.push_back({"columns of the loss, counts of experts",
                     WeightUpdate::loss_bytes(extras.device, train, max_sequence_tokens) +
                         ExpertBalancer::bytes(config),
                     /*certain=*/true, /*of_turn=*/true});
  items.push_back({"rotary positions", Model::bytes(config, max_sequence_tokens)});
  return items;
}

void PolicyTrainer::warm_up() {
  // A Buffer of the CPU has touched its memory when it was made: there the kind of pass is enough,
  // and a whole micro-batch of a model of 135 M parameters would take twenty seconds.
  constexpr int64_t kShort = 8;
  const int64_t longest =
      on_cpu() ? std::min(forward_.max_sequence_tokens(), kShort) : forward_.max_sequence_tokens();
  if (longest < 2) return;
  const std::vector<TokenId> tokens(static_cast<size_t>(longest), 0);
  // All but the first token count: no sequence of a run has more targets.
  std::vector<int32_t> targets(tokens.size() - 1);
  std::iota(targets.begin(), targets.end(), 1);
  std::vector<PackedSequence> sequences;
  int64_t left = on_cpu() ? longest : std::max(forward_.limits().max_tokens, longest);
  while (left >= 2 && std::ssize(sequences) < forward_.limits().max_sequences) {
    const auto length = static_cast<size_t>(std::min(left, longest));
    sequences.push_back({.tokens = std::span(tokens).first(length),
                         .targets = std::span(targets).first(length - 1)});
    left -= static_cast<int64_t>(length);
  }
  update_.rehearse(sequences);
}

void PolicyTrainer::join(Collective* ranks) {
  // Rank 0 may have trained on while another was started anew: its weights, moments and counts are
  // the ones that count.
  if (ranks != nullptr) ranks->broadcast(std::as_writable_bytes(parameters().flat()));
  update_.join(ranks);
  if (ranks != nullptr) weights_.changed();
}

Parameters& PolicyTrainer::scratch() {
  // Between steps the gradients' buffer is free, which saves a copy of the model.
  if (on_cpu()) return update_.tree().result();
  if (!scratch_) scratch_ = std::make_unique<Parameters>(model_.trained());
  return *scratch_;
}

void PolicyTrainer::set_reference(const Parameters& parameters) {
  weights_.set_reference(parameters);
  scratch_.reset();
}

double linear_score(const float* hidden, std::span<const float> head) {
  double sum = 0;
  for (size_t i = 0; i < head.size(); ++i)
    sum += static_cast<double>(hidden[i]) * static_cast<double>(head[i]);
  return sum;
}

MetricList PolicyTrainer::sft_update(std::span<const PackedSequence> sequences, double done) {
  TR_CHECK(!sequences.empty());
  int64_t count = 0;
  for (const PackedSequence& s : sequences) count += std::ssize(s.targets);
  const auto targets = static_cast<double>(count);
  update_.supervised(sequences, 1.0 / targets, done);
  const Optimizer::Report report = optimizer().take_reports().back();
  return {{"sft/loss", update_.take().back().loss.policy_term / targets},
          {"sft/tokens", targets},
          {"sft/grad_norm", report.grad_norm},
          {"sft/lr", report.lr},
          {"sft/update_skipped", report.skipped ? 1.0 : 0.0}};
}

Optimizer::Report PolicyTrainer::row_update(std::span<const PackedSequence> sequences,
                                            LossPass& loss, size_t together, double done) {
  TR_CHECK(!sequences.empty());
  update_.rows(sequences, loss, together, done);
  return optimizer().take_reports().back();
}

void PolicyTrainer::row_evaluation(std::span<const PackedSequence> sequences, LossPass& loss) {
  TR_CHECK(loss.wants().states, "it has no head of its own");
  const auto [first, last] = update_.tree().own_share(sequences);
  const auto own = sequences.subspan(first, last - first);
  for (auto [begin, end] : pack(own, forward_.limits())) {
    beat();
    const auto part = own.subspan(begin, end - begin);
    loss.measure_states(first + begin, first + end,
                        forward_.forward(stream_, weights_.packed(), part, {.head = false}).hidden);
  }
  loss.end(update_.tree());
}

std::vector<double> PolicyTrainer::linear_scores(std::span<const PackedSequence> sequences,
                                                 std::span<const float> head) {
  const auto [first, last] = update_.tree().own_share(sequences);
  const auto own = sequences.subspan(first, last - first);
  std::vector<double> scores;
  for (auto [begin, end] : pack(own, forward_.limits())) {
    beat();
    const auto part = own.subspan(begin, end - begin);
    const ConstMatrix hidden =
        forward_.forward(stream_, weights_.packed(), part, {.head = false}).hidden;
    for (int64_t row = 0; row < hidden.rows; ++row)
      scores.push_back(linear_score(hidden.row(row), head));
  }
  return update_.tree().gather_values(std::move(scores));
}

MetricList PolicyTrainer::sft_evaluation(std::span<const PackedSequence> sequences) {
  TR_CHECK(!sequences.empty());
  const auto [first, last] = update_.tree().own_share(sequences);
  const auto own = sequences.subspan(first, last - first);
  std::vector<float> logprobs;
  std::vector<uint8_t> is_likeliest;
  for (auto [begin, end] : pack(own, forward_.limits())) {
    beat();
    const auto part = own.subspan(begin, end - begin);
    std::ranges::copy(forward_.forward(stream_, weights_.packed(), part, {}).logprob,
                      std::back_inserter(logprobs));
    std::ranges::copy(forward_.is_likeliest(stream_, weights_.packed()),
                      std::back_inserter(is_likeliest));
  }
  // Summed in the order of the sequences, whoever measured them.
  double sum = 0, likeliest = 0;
  for (const float l : update_.tree().gather_values(std::move(logprobs))) sum -= l;
  is_likeliest = update_.tree().gather_values(std::move(is_likeliest));
  for (const uint8_t best : is_likeliest) likeliest += best;
  const auto targets = static_cast<double>(is_likeliest.size());
  return {{"sft/eval_loss", sum / targets}, {"sft/eval_token_accuracy", likeliest / targets}};
}

UpdateReport PolicyTrainer::policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                                          const PolicyLossConfig& loss, int64_t version,
                                          double done) {
  update_.policy(minibatch_pass(batch, minibatch, loss, version), done);
  const Optimizer::Report of_optimizer = optimizer().take_reports().back();
  UpdateReport report = update_.take().back();
  report.optimizer = of_optimizer;
  return report;
}

MetricList PolicyTrainer::policy_step(TrainBatch& batch, int64_t version,
                                      const PolicyLossConfig& loss, RunShare share) {
  TrainStep step = begin_step(/*gathers=*/false);
  step.batch().metrics = std::move(batch.metrics);
  step.add(std::move(batch), version, loss);
  MetricList metrics = step.finish(version, loss, share);
  batch = std::move(step.batch());
  return metrics;
}

}  // namespace tailrace
