#include "trainer/policy_trainer.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/embedding.h"
#include "trainer/loss_columns.h"
#include "trainer/token_advantages.h"

namespace tailrace {
namespace {

std::vector<PackedSequence> packed_views(const TrainBatch& batch, const Minibatch& minibatch) {
  std::vector<PackedSequence> views;
  for (size_t i = minibatch.begin; i < minibatch.end; ++i)
    views.push_back(batch.sequences[i].packed());
  return views;
}

// [targets] of each sequence.
std::vector<std::vector<float>> by_sequence(std::span<const PackedSequence> sequences,
                                            std::span<const float> targets) {
  std::vector<std::vector<float>> result;
  for (const PackedSequence& sequence : sequences) {
    const auto own = targets.first(sequence.targets.size());
    result.emplace_back(own.begin(), own.end());
    targets = targets.subspan(own.size());
  }
  return result;
}

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

DeviceLoss::Room loss_room(const TrainOptions& train, int64_t max_sequence_tokens) {
  const PackLimits limits = pack_limits(train.microbatch_tokens, max_sequence_tokens);
  return {.tokens = std::max(limits.max_tokens, max_sequence_tokens),
          .sequences = limits.max_sequences,
          .slots = train.gradient_slots};
}

UpdateReport sum_of(std::span<const UpdateReport> slots) {
  UpdateReport report;
  for (const UpdateReport& slot : slots) report.add(slot);
  return report;
}

// On the CPU in double.
void weigh(const Stream& stream, Parameters& gradients, double weight) {
  if (stream.device.kind == DeviceKind::kCpu) {
    for (float& g : gradients.flat()) g = static_cast<float>(g * weight);
    return;
  }
  constexpr int64_t kWidth = 16;  // the layout is padded to it
  Tensor flat = Matrix(gradients.values().data(), std::ssize(gradients.values()) / kWidth, kWidth);
  flat.device = stream.device;
  scale(stream, {.x = flat, .factor = static_cast<float>(weight)});
}

}  // namespace

PolicyTrainer::PolicyTrainer(const Stream& stream, const ModelConfig& config,
                             const TrainOptions& train, int64_t max_sequence_tokens, Dtype compute,
                             std::shared_ptr<const PackedWeights> base, DeviceBytes turn_memory)
    : stream_(stream),
      train_(train),
      model_(config, max_sequence_tokens, Placement::on(stream.device, compute)),
      base_(std::move(base)),
      parameters_(model_.trained()),
      on_device_(stream.device.kind == DeviceKind::kCpu
                     ? nullptr
                     : std::make_unique<Parameters>(model_.trained(), stream.device)),
      shared_(config.lora ? std::make_shared<PackedWeights>(stream_, base_, config, parameters_)
                          : std::make_shared<PackedWeights>(stream_, config, master(), compute)),
      packed_(*shared_),
      turn_(turn_memory.size > 0 ? std::make_optional<ArenaScope>(turn_memory) : std::nullopt),
      forward_(model_, pack_limits(train.microbatch_tokens, max_sequence_tokens),
               max_sequence_tokens, kept_of(train_), num_threads(stream)),
      tree_(stream, forward_, packed_, model_.trained(), train_.gradient_slots),
      balance_(model_.config(), train_.balance_coef, train_.balance_bias_rate, stream_),
      device_loss_(on_cpu() ? nullptr
                            : std::make_unique<DeviceLoss>(
                                  stream_, loss_room(train_, max_sequence_tokens))) {
  turn_.reset();
}

void PolicyTrainer::weights_changed() {
  if (on_device_) {
    copy(stream_, on_device_->bytes(), parameters_.bytes());
    wait(stream_);
    is_stale_ = false;
  }
  packed_.repack(stream_, master());
}

void PolicyTrainer::fetch_parameters() const {
  if (!is_stale_) return;
  copy(stream_, parameters_.bytes(), std::as_const(*on_device_).bytes());
  wait(stream_);
  is_stale_ = false;
}

Parameters& PolicyTrainer::scratch() {
  if (!on_device_) return tree_.result();
  if (!scratch_) scratch_ = std::make_unique<Parameters>(model_.trained());
  return *scratch_;
}

void PolicyTrainer::reset_optimizer(const OptimOptions& options) {
  if (options.kind == OptimizerKind::kMuon && stream_.device.kind != DeviceKind::kCpu)
    throw UserError::at("optim.kind",
                        "is muon, which runs on the CPU alone so far; this trainer computes on a "
                        "GPU. Try adamw.");
  // First without one: two would be the peak of the whole run.
  optimizer_.reset();
  optimizer_ = std::make_unique<Optimizer>(stream_, model_.trained(), options);
}

std::vector<MemoryItem> PolicyTrainer::memory(const ModelConfig& config, const TrainOptions& train,
                                              int64_t max_sequence_tokens, int threads,
                                              const Extras& extras) {
  const ParameterLayout layout = ParameterLayout::trained(config);
  const int64_t weights = Parameters::bytes(layout),
                packed = PackedWeights::bytes(config, extras.compute, extras.device);
  std::vector<MemoryItem> items = {
      {config.lora ? "adapter (fp32 master)" : "weights (fp32 master)", weights},
      {"their packed form",
       config.lora ? PackedWeights::adapter_bytes(config, extras.device) : packed},
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
           config, pack_limits(train.microbatch_tokens, max_sequence_tokens), max_sequence_tokens,
           kept_of(train), threads, Placement::on(extras.device, extras.compute))) {
    item.of_turn = true;
    items.push_back(std::move(item));
  }
  if (extras.has_critic)
    items.push_back({"critic (head, moments, gradients)",
                     Critic::bytes(config.hidden_size, train.gradient_slots)});
  if (extras.device.kind != DeviceKind::kCpu)
    items.push_back(
        {"columns of the loss, counts of experts",
         DeviceLoss::bytes(loss_room(train, max_sequence_tokens)) + ExpertBalancer::bytes(config),
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
  // As of one token, so that the loss that balances experts has its full weight. Rows without a
  // gradient would be left out of the head's.
  tree_.rehearse(sequences, {.with_entropy = true,
                             .entropy_gradient = true,
                             .balance = balance_.begin(1),
                             .loss = [](size_t, size_t, size_t, const PackedForward::Output&,
                                        std::span<float> dlogprob, std::span<float> dentropy) {
                               std::ranges::fill(dlogprob, 1.0f);
                               std::ranges::fill(dentropy, 1.0f);
                             }});
  balance_.forget();
}

void PolicyTrainer::join(Collective* ranks) {
  tree_.join(ranks);
  if (ranks == nullptr) return;
  ranks->broadcast(std::as_writable_bytes(parameters().flat()));
  optimizer().share(*ranks);
  if (critic_) critic_->share(*ranks);
  weights_changed();
}

Optimizer& PolicyTrainer::optimizer() {
  TR_CHECK(optimizer_ != nullptr, "reset_optimizer() comes first");
  return *optimizer_;
}

void PolicyTrainer::use_critic(const CriticOptions& options) {
  if (stream_.device.kind != DeviceKind::kCpu)
    throw UserError::at("algo.advantage",
                        "is gae, whose critic reads hidden states in the memory of the host; this "
                        "trainer computes on a GPU. Train on the CPU, or take group_mean.");
  critic_ = std::make_unique<Critic>(model_.config().hidden_size, train_.gradient_slots, options);
}

void PolicyTrainer::set_reference_to_base() {
  TR_CHECK(base_ != nullptr, "there is no base");
  reference_ = base_;
}

void PolicyTrainer::set_reference(const Parameters& parameters) {
  const ModelConfig& config = model_.config();
  reference_ = config.lora
                   ? std::make_shared<PackedWeights>(stream_, base_, config, parameters)
                   : std::make_shared<PackedWeights>(stream_, config, parameters, packed_.dtype());
  scratch_.reset();
}

std::vector<std::vector<float>> PolicyTrainer::score(std::span<const PackedSequence> sequences) {
  return score_with(packed_, sequences);
}

std::vector<std::vector<float>> PolicyTrainer::score_with(const PackedWeights& weights,
                                                          std::span<const PackedSequence> sequences,
                                                          std::vector<std::vector<float>>* values) {
  const auto [first, last] = tree_.own_share(sequences);
  const auto own = sequences.subspan(first, last - first);
  std::vector<float> logprobs, own_values;
  for (auto [begin, end] : pack(own, forward_.limits())) {
    const PackedForward::Output part =
        forward_.forward(stream_, weights, own.subspan(begin, end - begin), {});
    logprobs.insert(logprobs.end(), part.logprob.begin(), part.logprob.end());
    if (values != nullptr)
      std::ranges::move(critic_->values(part.hidden), std::back_inserter(own_values));
  }
  if (values != nullptr)
    *values = by_sequence(sequences, tree_.gather_values(std::move(own_values)));
  return by_sequence(sequences, tree_.gather_values(std::move(logprobs)));
}

MetricList PolicyTrainer::sft_update(std::span<const PackedSequence> sequences, double done) {
  TR_CHECK(!sequences.empty());
  int64_t targets = 0;
  int64_t tokens = 0;
  for (const PackedSequence& s : sequences) {
    targets += std::ssize(s.targets);
    tokens += std::ssize(s.tokens);
  }
  const double weight = 1.0 / static_cast<double>(targets);
  // What is summed is -logprob, in the place of the policy's term.
  std::vector<UpdateReport> slots(tree_.num_slots());
  const bool on_device = device_loss_ != nullptr;
  auto cross_entropy = [&](size_t slot, size_t, size_t, const PackedForward::Output& output,
                           std::span<float> dlogprob, std::span<float>) {
    if (on_device) return device_loss_->cross_entropy(slot, weight, output, dlogprob);
    for (float l : output.logprob) slots[slot].loss.policy_term -= l;
    std::ranges::fill(dlogprob, static_cast<float>(-weight));
  };
  if (on_device) device_loss_->begin();
  tree_.run(sequences, {.on_device = on_device,
                        .on_host = !on_device,
                        .balance = balance_.begin(tokens),
                        .loss = cross_entropy});
  if (on_device) device_loss_->end();
  balance_.gather(tree_.ranks());
  update(tree_.result(), done);
  balance_.forget();
  const Optimizer::Report report = optimizer().take_reports().back();
  if (on_device) slots = device_loss_->take().back();
  tree_.gather_slots(std::span(slots));
  const double sum = sum_of(slots).loss.policy_term;
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
  score_old(batch, version);
  if (loss.kl.needs_reference()) score_reference(batch);
  mask_rejected(batch, loss.correction);
  settle_advantages(batch, loss.kl);
}

void PolicyTrainer::score_old(TrainBatch& batch, int64_t version) {
  std::vector<PackedSequence> stale;
  std::vector<TrainSequence*> owners;
  for (TrainSequence& sequence : batch.sequences) {
    sequence.old_logprobs = sequence.recorded_logprobs;
    // No second pass for what this version sampled in our class: rollout's bits are the trainer's.
    size_t fresh = 0;
    while (fresh < sequence.versions.size() && sequence.is_fresh(fresh, version)) ++fresh;
    if (fresh == sequence.versions.size() && !critic_) continue;
    stale.push_back(sequence.packed());
    owners.push_back(&sequence);
  }
  std::vector<std::vector<float>> values;
  const std::vector<std::vector<float>> scored =
      score_with(packed_, stale, critic_ ? &values : nullptr);
  for (size_t i = 0; i < stale.size(); ++i) {
    TrainSequence& sequence = *owners[i];
    if (critic_) sequence.old_values = std::move(values[i]);
    for (size_t k = 0; k < sequence.versions.size(); ++k) {
      // These only: the others have theirs. (An install drops all KV, so older tokens in front do
      // not change what the present version samples behind them.)
      if (!sequence.is_fresh(k, version)) sequence.old_logprobs[k] = scored[i][k];
    }
  }
}

void PolicyTrainer::score_reference(TrainBatch& batch) {
  TR_CHECK(reference_ != nullptr, "a KL term against a reference needs set_reference()");
  std::vector<PackedSequence> all = packed_views(batch, {0, batch.sequences.size()});
  // Its routers are others.
  for (PackedSequence& sequence : all) sequence.choices = {};
  // Once a step and not once an update: neither the reference nor the tokens change in between.
  std::vector<std::vector<float>> reference = score_with(*reference_, all);
  for (size_t i = 0; i < all.size(); ++i) batch.sequences[i].ref_logprobs = std::move(reference[i]);
}

void PolicyTrainer::backward(const TrainBatch& batch, const Minibatch& minibatch,
                             const PolicyLossConfig& loss, const LossCounts& counts,
                             int64_t version, Parameters* sum) {
  std::vector<UpdateReport> slots(tree_.num_slots());
  std::vector<float> seen;  // by the sink, of the sequences of this rank
  std::vector<PackedSequence> views = packed_views(batch, minibatch);
  auto sequences =
      std::span(batch.sequences).subspan(minibatch.begin, minibatch.end - minibatch.begin);

  // Another rank may listen to what this one computes.
  const bool listening = logprob_sink_ || tree_.ranks() != nullptr;
  const bool on_device = device_loss_ != nullptr;
  if (critic_) critic_->begin();
  auto pass_loss = [&](size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
                       std::span<float> dlogprob, std::span<float> dentropy) {
    const auto part = sequences.subspan(begin, end - begin);
    if (on_device) {
      device_loss_->policy(slot, part, counts, version, output, dlogprob, dentropy);
    } else {
      const LossColumns columns(part);
      slots[slot].loss.add(policy_loss(loss, columns.input(output), counts, dlogprob, dentropy));
      slots[slot].add_mismatch(part, output.logprob, version);
    }
    if (critic_) critic_->add(slot, part, output.hidden, counts.tokens);
    if (listening) seen.insert(seen.end(), output.logprob.begin(), output.logprob.end());
  };
  int64_t tokens = 0;
  for (const PackedSequence& view : views) tokens += std::ssize(view.tokens);
  // Entropy is wanted for the metrics even where no gradient goes through it.
  const GradientPass pass{.with_entropy = true,
                          .entropy_gradient = loss.entropy_coef != 0,
                          .on_device = on_device,
                          .on_host = !on_device || listening,
                          .balance = balance_.begin(tokens),
                          .loss = pass_loss};
  if (on_device) device_loss_->begin(loss);
  if (sum != nullptr) {
    tree_.add_to(*sum, views, pass);
  } else {
    tree_.run(views, pass);
  }
  if (on_device) device_loss_->end();
  balance_.gather(tree_.ranks());
  // Ranks wait for each other, and so for their devices.
  if (on_device && tree_.ranks() != nullptr) slots = device_loss_->take().back();
  if (!on_device || tree_.ranks() != nullptr) {
    tree_.gather_slots(std::span(slots));
    updates_.push_back(sum_of(slots));
  }
  if (critic_) critic_->gather(tree_);
  if (listening) tell_sink(sequences, tree_.gather_values(std::move(seen)));
}

std::vector<UpdateReport> PolicyTrainer::take_updates() {
  if (device_loss_)
    for (const auto& slots : device_loss_->take()) updates_.push_back(sum_of(slots));
  return std::exchange(updates_, {});
}

void PolicyTrainer::tell_sink(std::span<const TrainSequence> sequences,
                              std::span<const float> logprobs) const {
  if (!logprob_sink_) return;
  for (const TrainSequence& sequence : sequences) {
    logprob_sink_(sequence, logprobs.first(sequence.targets.size()));
    logprobs = logprobs.subspan(sequence.targets.size());
  }
}

UpdateReport PolicyTrainer::policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                                          const PolicyLossConfig& loss, int64_t version,
                                          double done) {
  start_policy_update(batch, minibatch, loss, version, done);
  const Optimizer::Report of_optimizer = optimizer().take_reports().back();
  UpdateReport report = take_updates().back();
  report.optimizer = of_optimizer;
  return report;
}

void PolicyTrainer::start_policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                                        const PolicyLossConfig& loss, int64_t version,
                                        double done) {
  LossCounts counts = loss_counts(batch, minibatch);
  TR_CHECK(counts.tokens > 0);
  if (loss.correction.normalize)
    counts.mean_correction = mean_correction(batch, minibatch, loss.correction);
  backward(batch, minibatch, loss, counts, version);
  update(tree_.result(), done);
  if (critic_) critic_->apply();
}

void PolicyTrainer::critic_update(const TrainBatch& batch, const Minibatch& minibatch) {
  const int64_t tokens = loss_counts(batch, minibatch).tokens;
  TR_CHECK(critic_ != nullptr && tokens > 0);
  const auto sequences =
      std::span(batch.sequences).subspan(minibatch.begin, minibatch.end - minibatch.begin);
  critic_->begin();
  tree_.run(packed_views(batch, minibatch),
            {.backward = false,
             .loss = [&](size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
                         std::span<float>, std::span<float>) {
               critic_->add(slot, sequences.subspan(begin, end - begin), output.hidden, tokens);
             }});
  critic_->gather(tree_);
  critic_->apply();
}

void PolicyTrainer::update(const Parameters& gradients, double done) {
  optimizer().apply(gradients, master(), done);
  is_stale_ = on_device_ != nullptr;
  // The host moves these biases, so it has to know. Nothing else waits for an update here.
  if (balance_.moves_bias() && !optimizer().last_report().skipped) {
    balance_.move_bias(parameters());
    weights_changed();
  } else {
    // Of an update that was skipped too: it packs the same bits, and to ask would be to wait.
    packed_.repack(stream_, master());
  }
  balance_.end_update();
}

MetricList PolicyTrainer::report_step(const TrainBatch& batch, const StepReport& step,
                                      int64_t version, const PolicyLossConfig& loss,
                                      int64_t epochs) {
  MetricList metrics = step_metrics(batch, step, version, loss, epochs);
  for (auto& metric : balance_.take_metrics(balance_.moves_bias() ? parameters() : parameters_))
    metrics.push_back(std::move(metric));
  if (critic_)
    for (auto& metric : critic_->take_metrics(batch)) metrics.push_back(std::move(metric));
  return metrics;
}

double PolicyTrainer::measure_drift(const TrainBatch& batch) {
  const std::vector<size_t> sample = drift_sample(batch, forward_.limits().max_tokens);
  std::vector<PackedSequence> sequences;
  for (const size_t index : sample) sequences.push_back(batch.sequences[index].packed());
  return drift_of(batch, sample, score(sequences));
}

MetricList PolicyTrainer::policy_step(TrainBatch& batch, int64_t version,
                                      const PolicyLossConfig& loss, RunShare share) {
  prepare_step(batch, version, loss);
  StepReport step;
  updates_.clear();  // of a step that lost a rank
  const bool moves = !critic_ || version >= critic_->options().warmup_steps;
  std::vector<Minibatch> minibatches = split_minibatches(batch, train_.minibatches_per_step);
  // All of its tokens may have been rejected.
  std::erase_if(minibatches, [&](const Minibatch& minibatch) {
    return loss_counts(batch, minibatch).tokens == 0;
  });
  const auto updates = static_cast<double>(std::ssize(minibatches) * train_.ppo_epochs);
  double made = 0;
  for (int64_t epoch = 0; epoch < train_.ppo_epochs; ++epoch) {
    for (const Minibatch& minibatch : minibatches) {
      const double done = share.begin + (share.end - share.begin) * (made++ / updates);
      if (moves) {
        start_policy_update(batch, minibatch, loss, version, done);
      } else {
        critic_update(batch, minibatch);
      }
    }
  }
  const std::vector<Optimizer::Report> reports = optimizer().take_reports();
  for (const UpdateReport& update : take_updates()) step.add(update);
  step.add(reports);
  // What the passes of the updates saw is behind by the last of them, and with one by all.
  if (step.updates > 0) step.moved = measure_drift(batch);
  return report_step(batch, step, version, loss, train_.ppo_epochs);
}

void PolicyTrainer::StreamedStep::clear() {
  batch = {};
  sums = {};
  const Stream stream{.device = gradients.device()};
  fill(stream, {.x = gradients.values(), .value = 0});
  wait(stream);
  loads.clear();
}

void PolicyTrainer::add_group(StreamedStep& step, TrainBatch group, int64_t version,
                              const PolicyLossConfig& loss) {
  TR_CHECK(critic_ == nullptr && !loss.correction.normalize, "they need the whole step");
  const size_t size = group.sequences.size();
  if (size > 0) {
    prepare_step(group, version, loss);
    const LossCounts one{
        .tokens = 1, .trajectories = 1, .trajectory_tokens = group.trajectory_tokens};
    backward(group, {0, size}, loss, one, version, &step.gradients);
    step.sums.add(take_updates().back());
    // The step's, as its gradients are: one that is given up takes them along.
    balance_.move_to(step.loads);
  }
  append(step.batch, std::move(group));
}

MetricList PolicyTrainer::finish(StreamedStep& step, int64_t version, const PolicyLossConfig& loss,
                                 RunShare share) {
  StepReport report;
  const LossCounts counts = loss_counts(step.batch, {0, step.batch.sequences.size()});
  if (counts.tokens > 0) {
    const double weight = common_weight(loss.aggregation, counts);
    weigh(stream_, step.gradients, weight);
    PolicyLossResult& sums = step.sums.loss;
    for (double* term :
         {&sums.loss, &sums.policy_term, &sums.kl_term, &sums.entropy_term, &sums.imitation_term})
      *term *= weight;
    balance_.take_back(step.loads);
    update(step.gradients, share.begin);
    report.add(step.sums);
    report.add(optimizer().take_reports());
    report.moved = measure_drift(step.batch);
  }
  return report_step(step.batch, report, version, loss, /*epochs=*/1);
}

}  // namespace tailrace
