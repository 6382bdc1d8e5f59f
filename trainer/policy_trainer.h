// The trainer's mathematics over one model: scoring, supervised updates, and policy updates.
//
// Determinism: the result of an update is the same, bit for bit, for any number of threads
// (gradient_tree.h). Another microbatch_tokens only moves the places where float sums are cut.
//
// Data parallel: with join() several trainers, each a rank, make the same updates of the same
// batches. A rank computes the sequences of its own slots, so an update has the same bits for any
// number of ranks, and all ranks come to the same weights. Every rank calls the same functions with
// the same arguments, and reports are of all ranks. Metrics whose sums are cut elsewhere
// (experts/balance_loss) may differ in their last digits between numbers of ranks.
//
// Log-probabilities: a token that the current version sampled in the trainer's own numerics class
// has its l_old recorded, because rule 3 makes them the same bits; the first update of a step
// measures that it is so (mismatch/...). Tokens of older versions or of another class are scored
// with the current weights, and the loss corrects for the difference to what sampled.
//
// Experts: balance_coef adds a loss to each update, over all tokens of its sequences; after an
// update balance_bias_rate moves the biases of their choice, which are parameters without a
// gradient. The model must have them (ModelConfig::choice_bias) where the rate is not 0.
//
// On a GPU the losses are computed there, and an update of a policy, or of supervised learning, is
// only asked for: what it measured comes back with the report of the optimizer. Ranks exchange
// memory of the host, and wait; so does a watcher of log-probabilities.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/model/model.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "trainer/batch.h"
#include "trainer/critic.h"
#include "trainer/device_loss.h"
#include "trainer/expert_balancer.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/optimizer.h"
#include "trainer/options.h"
#include "trainer/packed_forward.h"
#include "trainer/step_report.h"

namespace tailrace {

// The part of a run that a step is: shares of the whole, 0 <= begin <= end <= 1. Its updates share
// it equally, and the schedule of the rates goes by where each begins.
struct RunShare {
  double begin = 0, end = 0;
};

class PolicyTrainer {
 public:
  // Computes on stream's device and borrows its pool. Weights are zero until weights_changed() is
  // told of new ones.
  // max_sequence_tokens: the longest sequence that will come, at most the model's positions.
  // `compute`: of the weights that products read. With an adapter (config.lora) `base` has the
  // frozen weights, and parameters, gradients and moments are those of the adapter.
  // `turn_memory`: where gradients, activations and scratch lie, which nobody reads between two
  // steps; of no bytes: in memory of their own.
  PolicyTrainer(const Stream& stream, const ModelConfig& config, const TrainOptions& train,
                int64_t max_sequence_tokens, Dtype compute = Dtype::kF32,
                std::shared_ptr<const PackedWeights> base = nullptr, DeviceBytes turn_memory = {});
  PolicyTrainer(const PolicyTrainer&) = delete;

  // What it allocates from its construction to its last step. `threads`: of the stream.
  struct Extras {
    bool keeps_reference = false;  // set_reference() will be called, not set_reference_to_base()
    bool streams = false;          // there will be a StreamedStep
    bool has_critic = false;       // use_critic() will be called
    Dtype compute = Dtype::kF32;   // of the weights that products read
    Device device = {};            // of the stream
    // Of reset_optimizer(), one after the other.
    std::vector<OptimizerKind> optimizers = {OptimizerKind::kAdamW};
  };
  // Of the device; on another one than the CPU the host has a copy of the weights beside it.
  static std::vector<MemoryItem> memory(const ModelConfig& config, const TrainOptions& train,
                                        int64_t max_sequence_tokens, int threads,
                                        const Extras& extras);

  // Forwards and backwards one micro-batch as large as any that will come, so that memory that the
  // device does not have is missed now; on the CPU, whose buffers have missed it before, a short
  // one. Without an update, and nothing that counts remembers it.
  void warm_up();

  // From now on this is a rank of `ranks`, a power of two of them that divides gradient_slots;
  // null: it is alone. Rank 0 gives the others its weights and what its optimizer knows. `ranks`
  // must outlive this, or the next join(). Throws RankLost, as does all that computes from then on;
  // the weights may be those between two updates of a step then.
  void join(Collective* ranks);

  const Model& model() const { return model_; }
  // What products read; changed by weights_changed() and by updates.
  const std::shared_ptr<PackedWeights>& packed() const { return shared_; }
  int64_t max_sequence_tokens() const { return forward_.max_sequence_tokens(); }
  const TrainOptions& options() const { return train_; }

  // The float32 master weights, in memory of the host: where they lie on the CPU, else a copy, for
  // which this waits if an update came since the last one. After writing to them call
  // weights_changed().
  Parameters& parameters() { return fetch_parameters(), parameters_; }
  const Parameters& parameters() const { return fetch_parameters(), parameters_; }
  void weights_changed();

  // A fresh optimizer with empty moments; needed before the first update, and between SFT and RL.
  void reset_optimizer(const OptimOptions& options);
  Optimizer& optimizer();

  // From now on policy steps also train a critic, on the `returns` of their sequences. The first
  // critic.warmup_steps versions leave the policy as it is. Throws UserError where hidden states
  // are not in the memory of the host. Before join().
  void use_critic(const CriticOptions& options);
  Critic* critic() { return critic_.get(); }  // null: there is none
  // Updates of the optimizer and of the critic that were begun since they were made or loaded: two
  // equal numbers mean that nothing that is trained has changed in between.
  int64_t tries() { return optimizer().tries() + (critic_ ? critic_->updates() : 0); }

  // Freezes a copy of `parameters` as the reference policy of the KL term; of an adapter beside the
  // base that both share.
  void set_reference(const Parameters& parameters);
  // Of an adapter: the base without it, which takes no memory.
  void set_reference_to_base();

  // Teacher forcing: log-probabilities of each sequence's targets, natural log, in the order given.
  std::vector<std::vector<float>> score(std::span<const PackedSequence> sequences);

  // One update on -(sum of target log-probabilities) / (number of targets). `done`: the share of
  // the training that lies before it.
  // Metrics sft/{loss,tokens,grad_norm,lr,update_skipped}; the loss is that before the update.
  MetricList sft_update(std::span<const PackedSequence> sequences, double done = 0);

  // What sft_update() would learn from, measured: metrics sft/eval_loss and
  // sft/eval_token_accuracy, the share of targets that are the likeliest token. Of this rank alone.
  MetricList sft_evaluation(std::span<const PackedSequence> sequences);

  // Sets old and reference log-probabilities, and with a critic the old values, of all sequences,
  // and then what the loss makes of them (token_advantages.h); `version` is that of the current
  // weights. Before the first policy_update() of a step.
  void prepare_step(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss);

  // A step whose groups come one by one, and that makes one update once it has all (AsyncFlow,
  // 2507.01663). Denominators are global as ever: gradients gather with counts of 1, and are
  // divided in the end.
  struct StreamedStep {
    explicit StreamedStep(const Model& model)
        : gradients(model.trained(), model.placement().device), loads(model.config()) {}
    void clear();      // for the next step, in the same memory
    TrainBatch batch;  // what was added; its metrics are the caller's to set
    UpdateReport sums;
    Parameters gradients;
    ExpertLoads loads;
  };
  // The sums depend on the order of the groups alone, whenever each of them comes. An update
  // between two groups of a step would give it two policies.
  void add_group(StreamedStep& step, TrainBatch group, int64_t version,
                 const PolicyLossConfig& loss);
  // The update. Metrics as of policy_step(). The step is spent.
  MetricList finish(StreamedStep& step, int64_t version, const PolicyLossConfig& loss,
                    RunShare share = {});

  // One optimizer update. `version`: see the mismatch fields; they mean something only as long as
  // no update came after prepare_step(). Waits for the report of the optimizer, which a step reads
  // at its end.
  UpdateReport policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                             const PolicyLossConfig& loss, int64_t version, double done = 0);

  // What an update does in the first steps of a critic.
  void critic_update(const TrainBatch& batch, const Minibatch& minibatch);

  // A whole step: prepare, then ppo_epochs passes over the minibatches. Metrics policy/...,
  // mismatch/..., staleness/..., and the batch's own. A batch without sequences makes no update.
  MetricList policy_step(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss,
                         RunShare share = {});

  // Hears of each sequence of an update, in every pass, the log-probabilities of its targets that
  // the loss is made of.
  using LogprobSink = std::function<void(const TrainSequence&, std::span<const float> logprobs)>;
  void watch_logprobs(LogprobSink sink) { logprob_sink_ = std::move(sink); }

  // The gradient that the last update used, before clipping; of the stream's device.
  const Parameters& gradients() const { return tree_.result(); }
  // Memory of the host for who needs as much between two steps; on the CPU that of gradients(),
  // which the next step clears. Until set_reference().
  Parameters& scratch();

 private:
  bool on_cpu() const { return stream_.device.kind == DeviceKind::kCpu; }
  // The master weights where updates are made.
  Parameters& master() { return on_device_ ? *on_device_ : parameters_; }
  void fetch_parameters() const;
  void score_old(TrainBatch& batch, int64_t version);
  void score_reference(TrainBatch& batch);
  void update(const Parameters& gradients, double done);
  // A policy_update() whose reports are still to be taken: from take_updates() and the optimizer.
  void start_policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                           const PolicyLossConfig& loss, int64_t version, double done);
  // The gradient of these sequences' loss: in gradients(), or added to `sum`. No update. Its report
  // is still to be taken.
  void backward(const TrainBatch& batch, const Minibatch& minibatch, const PolicyLossConfig& loss,
                const LossCounts& counts, int64_t version, Parameters* sum = nullptr);
  // What each backward() since the last call measured. Waits for the stream where the loss is
  // there.
  std::vector<UpdateReport> take_updates();
  // How far the updates of a step have moved the policy, by a forward pass over drift_sample(): at
  // most one micro-batch. Reads the weights alone.
  double measure_drift(const TrainBatch& batch);
  void tell_sink(std::span<const TrainSequence> sequences, std::span<const float> logprobs) const;
  MetricList report_step(const TrainBatch& batch, const StepReport& step, int64_t version,
                         const PolicyLossConfig& loss, int64_t epochs);
  // Of all targets; `values`: those of the critic too, where it is not null.
  std::vector<std::vector<float>> score_with(const PackedWeights& weights,
                                             std::span<const PackedSequence> sequences,
                                             std::vector<std::vector<float>>* values = nullptr);

  Stream stream_;
  TrainOptions train_;
  Model model_;
  std::shared_ptr<const PackedWeights> base_;  // of an adapter; null: there is none
  // On a device other than the CPU the master weights are there, and these a copy of them.
  mutable Parameters parameters_;
  mutable bool is_stale_ = false;          // that copy
  std::unique_ptr<Parameters> on_device_;  // null: parameters_ are the master weights
  std::unique_ptr<Parameters> scratch_;
  std::shared_ptr<PackedWeights> shared_;
  PackedWeights& packed_;  // the same
  std::shared_ptr<const PackedWeights> reference_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<ArenaScope> turn_;  // while what follows is made
  PackedForward forward_;
  GradientTree tree_;
  ExpertBalancer balance_;
  std::unique_ptr<Critic> critic_;           // null: there is none
  LogprobSink logprob_sink_;                 // empty: nobody listens
  std::unique_ptr<DeviceLoss> device_loss_;  // null: losses are computed by the host
  std::vector<UpdateReport> updates_;        // known and not taken
};

}  // namespace tailrace
