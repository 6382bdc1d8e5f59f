#include "trainer/weight_update.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "kernels/base/check.h"
#include "trainer/device_loss.h"

namespace tailrace {
namespace {

int64_t num_tokens(std::span<const PackedSequence> sequences) {
  int64_t tokens = 0;
  for (const PackedSequence& sequence : sequences) tokens += std::ssize(sequence.tokens);
  return tokens;
}

DeviceLoss::Room room_of(const TrainOptions& train, int64_t max_sequence_tokens) {
  const PackLimits limits =
      pack_limits(train.microbatch_tokens, max_sequence_tokens, train.share_prefixes);
  return {.tokens = std::max(limits.max_tokens, max_sequence_tokens),
          .sequences = limits.max_sequences,
          .slots = train.gradient_slots};
}

std::unique_ptr<UpdateLoss> make_loss(const Stream& stream, const TrainOptions& train,
                                      int64_t max_sequence_tokens) {
  if (stream.device.kind == DeviceKind::kCpu)
    return std::make_unique<HostLoss>(train.gradient_slots);
  return std::make_unique<DeviceLoss>(stream, room_of(train, max_sequence_tokens));
}

}  // namespace

int64_t WeightUpdate::loss_bytes(Device device, const TrainOptions& train,
                                 int64_t max_sequence_tokens) {
  if (device.kind == DeviceKind::kCpu) return 0;
  return DeviceLoss::bytes(room_of(train, max_sequence_tokens));
}

std::vector<PackedSequence> packed_views(std::span<const TrainSequence> sequences) {
  std::vector<PackedSequence> views;
  for (const TrainSequence& sequence : sequences) views.push_back(sequence.packed());
  return views;
}

void WeightUpdate::Watch::begin(const PolicyPass& pass) {
  sequences = pass.sequences;
  seen.clear();
}

void WeightUpdate::Watch::add(size_t, size_t, size_t, const PackedForward::Output& output) {
  seen.insert(seen.end(), output.logprob.begin(), output.logprob.end());
}

void WeightUpdate::Watch::end(const GradientTree& tree) {
  const std::vector<float> all = tree.gather_values(std::exchange(seen, {}));
  if (!sink) return;
  std::span<const float> logprobs = all;
  for (const TrainSequence& sequence : sequences) {
    sink(sequence, logprobs.first(sequence.targets.size()));
    logprobs = logprobs.subspan(sequence.targets.size());
  }
}

WeightUpdate::WeightUpdate(const Stream& stream, const Model& model, PackedForward& forward,
                           TrainedWeights& weights, const TrainOptions& train)
    : stream_(stream),
      model_(model),
      weights_(weights),
      tree_(stream, forward, weights.packed(), model.trained(), train.gradient_slots),
      balance_(model.config(), train.balance_coef, train.balance_bias_rate, stream),
      loss_(make_loss(stream, train, forward.max_sequence_tokens())) {}

void WeightUpdate::join(Collective* ranks) {
  tree_.join(ranks);
  if (ranks == nullptr) return;
  optimizer().share(*ranks);
  if (critic_) critic_->share(*ranks);
}

void WeightUpdate::reset_optimizer(const OptimOptions& options) {
  if (options.kind == OptimizerKind::kMuon && stream_.device.kind != DeviceKind::kCpu)
    throw UserError::at("optim.kind",
                        "is muon, which runs on the CPU alone so far; this trainer computes on a "
                        "GPU. Try adamw.");
  // First without one: two would be the peak of the whole run.
  optimizer_.reset();
  optimizer_ = std::make_unique<Optimizer>(stream_, model_.trained(), options);
}

Optimizer& WeightUpdate::optimizer() {
  TR_CHECK(optimizer_ != nullptr, "reset_optimizer() comes first");
  return *optimizer_;
}

void WeightUpdate::use_critic(const CriticOptions& options) {
  if (stream_.device.kind != DeviceKind::kCpu)
    throw UserError::at("algo.advantage",
                        "is gae, whose critic reads hidden states in the memory of the host; this "
                        "trainer computes on a GPU. Train on the CPU, or take group_mean.");
  critic_ = std::make_unique<Critic>(model_.config().hidden_size,
                                     static_cast<int64_t>(tree_.num_slots()), options);
}

void WeightUpdate::rehearse(std::span<const PackedSequence> sequences) {
  // As of one token, so that the loss that balances experts has its full weight.
  tree_.rehearse(sequences, balance_.begin(1));
  balance_.forget();
}

std::vector<PassListener*> WeightUpdate::listeners() {
  std::vector<PassListener*> all;
  if (critic_) all.push_back(critic_.get());
  // With ranks all of them watch, since gathering takes all of them; only rank 0 has a sink.
  if (watch_.sink || tree_.ranks() != nullptr) all.push_back(&watch_);
  return all;
}

void WeightUpdate::backward(const PolicyPass& pass, Parameters* sum) {
  const std::vector<PassListener*> listeners = this->listeners();
  for (PassListener* listener : listeners) listener->begin(pass);
  loss_->begin(pass);
  const std::vector<PackedSequence> views = packed_views(pass.sequences);
  const GradientPass of{
      .loss = loss_.get(), .listeners = listeners, .balance = balance_.begin(num_tokens(views))};
  if (sum != nullptr) {
    tree_.add_to(*sum, views, of);
  } else {
    tree_.run(views, of);
  }
  loss_->end(tree_);
  balance_.gather(tree_.ranks());
  for (PassListener* listener : listeners) listener->end(tree_);
}

void WeightUpdate::policy(const PolicyPass& pass, double done) {
  backward(pass, nullptr);
  apply(tree_.result(), done);
  if (critic_) critic_->apply();
}

void WeightUpdate::supervised(std::span<const PackedSequence> sequences, double weight,
                              double done) {
  loss_->begin(SupervisedPass{weight});
  rows(sequences, *loss_, 1, done);
}

void WeightUpdate::rows(std::span<const PackedSequence> sequences, LossPass& loss, size_t together,
                        double done) {
  tree_.run(
      sequences,
      {.loss = &loss, .balance = balance_.begin(num_tokens(sequences)), .together = together});
  loss.end(tree_);
  balance_.gather(tree_.ranks());
  apply(tree_.result(), done);
  balance_.forget();
}

void WeightUpdate::critic_alone(const PolicyPass& pass) {
  TR_CHECK(critic_ != nullptr);
  critic_->begin(pass);
  PassListener* const listener = critic_.get();
  // Without a loss the tree runs no backward pass: the head's gradient needs hidden states alone.
  tree_.run(packed_views(pass.sequences), {.listeners = {&listener, 1}});
  critic_->end(tree_);
  critic_->apply();
}

void WeightUpdate::gather(const PolicyPass& pass, Parameters& sum, ExpertLoads& loads) {
  TR_CHECK(critic_ == nullptr, "a critic needs the whole step");
  backward(pass, &sum);
  // The step's, as its gradients are: one that is given up takes them along.
  balance_.move_to(loads);
}

void WeightUpdate::apply(const Parameters& sum, const ExpertLoads& loads, double done) {
  balance_.take_back(loads);
  apply(sum, done);
}

void WeightUpdate::apply(const Parameters& gradients, double done) {
  optimizer().apply(gradients, weights_.master(), done);
  weights_.updated();
  // The host moves these biases, so it has to know. Nothing else waits for an update here.
  if (balance_.moves_bias() && !optimizer().last_report().skipped) {
    balance_.move_bias(weights_.on_host());
    weights_.changed();
  } else {
    // Also after an update that was skipped: it packs the same bits, and to ask would be to wait.
    weights_.repack();
  }
  balance_.end_update();
}

MetricList WeightUpdate::take_metrics(const TrainBatch& batch) {
  MetricList metrics =
      balance_.take_metrics(balance_.moves_bias() ? weights_.on_host() : weights_.last_on_host());
  if (critic_)
    for (auto& metric : critic_->take_metrics(batch)) metrics.push_back(std::move(metric));
  return metrics;
}

}  // namespace tailrace
