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
// What it is made of: TrainedWeights, the forms of the weights; StepScores, what they say of a
// step's tokens before it; WeightUpdate, the gradient, the optimizer and the critic; and TrainStep,
// which groups are added to and which makes the updates. The first update of a step measures
// (mismatch/...) that fresh tokens have the log-probabilities that were recorded.
//
// Experts: balance_coef adds a loss to each update, over all tokens of its sequences; after an
// update balance_bias_rate moves the biases of their choice, which are parameters without a
// gradient. The model must have them (ModelConfig::choice_bias) where the rate is not 0.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/model/model.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "trainer/batch.h"
#include "trainer/critic.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/loss_pass.h"
#include "trainer/optimizer.h"
#include "trainer/options.h"
#include "trainer/packed_forward.h"
#include "trainer/step_report.h"
#include "trainer/step_scores.h"
#include "trainer/train_step.h"
#include "trainer/trained_weights.h"
#include "trainer/weight_update.h"

namespace tailrace {

// The product of a hidden state and a head of one row, [head.size()] both, summed in double.
double linear_score(const float* hidden, std::span<const float> head);

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
                int64_t max_sequence_tokens, const Elements& compute = {},
                std::shared_ptr<const PackedWeights> base = nullptr, DeviceBytes turn_memory = {});
  PolicyTrainer(const PolicyTrainer&) = delete;

  // Memory that it allocates from its construction to its last step. `threads`: of the stream.
  struct Extras {
    bool keeps_reference = false;  // set_reference() will be called, not set_reference_to_base()
    bool streams = false;          // there will be a step that gathers
    bool has_critic = false;       // use_critic() will be called
    Elements compute = {};
    Device device = {};  // of the stream
    // The optimizers that reset_optimizer() will set, one after the other.
    std::vector<OptimizerKind> optimizers = {OptimizerKind::kAdamW};
  };
  // The device's memory; beside a device other than the CPU the host has a copy of the weights.
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
  // The weights that products read; changed by weights_changed() and by updates.
  const std::shared_ptr<PackedWeights>& packed() const { return weights_.shared(); }
  int64_t max_sequence_tokens() const { return forward_.max_sequence_tokens(); }
  const TrainOptions& options() const { return train_; }

  // The float32 master weights, in memory of the host: where they lie on the CPU, else a copy, for
  // which this waits if an update came since the last one. After writing to them call
  // weights_changed().
  Parameters& parameters() { return weights_.on_host(); }
  const Parameters& parameters() const { return weights_.on_host(); }
  void weights_changed() { weights_.changed(); }

  // A fresh optimizer with empty moments; needed before the first update, and between SFT and RL.
  void reset_optimizer(const OptimOptions& options) { update_.reset_optimizer(options); }
  Optimizer& optimizer() { return update_.optimizer(); }

  // From now on policy steps also train a critic, on the `returns` of their sequences. The first
  // critic.warmup_steps versions leave the policy as it is. Throws UserError where hidden states
  // are not in the memory of the host. Before join().
  void use_critic(const CriticOptions& options) { update_.use_critic(options); }
  Critic* critic() { return update_.critic(); }  // null: there is none
  // Updates of the optimizer and of the critic that were begun since they were made or loaded: two
  // equal numbers mean that nothing that is trained has changed in between.
  int64_t tries() { return optimizer().tries() + (critic() ? critic()->updates() : 0); }

  // Freezes a copy of `parameters` as the reference policy of the KL term; of an adapter beside the
  // base that both share.
  void set_reference(const Parameters& parameters);
  // With an adapter: the reference is the base without it, which takes no memory.
  void set_reference_to_base() { weights_.set_reference_to_base(); }

  // Teacher forcing: log-probabilities of each sequence's targets, natural log, in the order given.
  std::vector<std::vector<float>> score(std::span<const PackedSequence> sequences) {
    return scores_.score(sequences);
  }

  // One update on -(sum of target log-probabilities) / (number of targets). `done`: the share of
  // the training that lies before it.
  // Metrics sft/{loss,tokens,grad_norm,lr,update_skipped}; the loss is that before the update.
  MetricList sft_update(std::span<const PackedSequence> sequences, double done = 0);

  // One update on a loss of the caller's: the tree's slots and ranks as ever. So many sequences,
  // one behind the other, stay in one pass, which must hold them.
  Optimizer::Report row_update(std::span<const PackedSequence> sequences, LossPass& loss,
                               size_t together, double done = 0);

  // The loss of each sequence without a gradient, shared among ranks: measure_states() of a loss
  // with a head of its own, and end(). On the CPU.
  void row_evaluation(std::span<const PackedSequence> sequences, LossPass& loss);

  // Each sequence's hidden state in front of its only target times `head` [hidden_size], without a
  // gradient; on the CPU.
  std::vector<double> linear_scores(std::span<const PackedSequence> sequences,
                                    std::span<const float> head);

  // Measures the loss that sft_update() would learn from: metrics sft/eval_loss and
  // sft/eval_token_accuracy, the share of targets that are the likeliest token.
  MetricList sft_evaluation(std::span<const PackedSequence> sequences);

  // A step whose groups come one by one (`gathers`), or at once. Borrows the trainer.
  TrainStep begin_step(bool gathers) {
    return {stream_, model_, scores_, update_, train_, gathers};
  }
  // A whole step of the second kind. `batch`: with what was made of it.
  MetricList policy_step(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss,
                         RunShare share = {});

  // Parts of a step. StepScores::prepare(), before the first update of a step.
  void prepare_step(TrainBatch& batch, int64_t version, const PolicyLossConfig& loss) {
    scores_.prepare(batch, version, loss, critic());
  }
  // One update, behind it. `version`: see the mismatch fields; they mean something only as long as
  // no update came after prepare_step(). Waits for the report of the optimizer, which a step reads
  // at its end.
  UpdateReport policy_update(const TrainBatch& batch, const Minibatch& minibatch,
                             const PolicyLossConfig& loss, int64_t version, double done = 0);

  // See LogprobSink.
  void watch_logprobs(LogprobSink sink) { update_.watch_logprobs(std::move(sink)); }

  // The gradient that the last update used, before clipping; of the stream's device.
  const Parameters& gradients() const { return update_.tree().result(); }
  // Memory of the host for who needs as much between two steps; on the CPU that of gradients(),
  // which the next step clears and, with turn memory, others write to in between. Until
  // set_reference().
  Parameters& scratch();

 private:
  bool on_cpu() const { return stream_.device.kind == DeviceKind::kCpu; }

  Stream stream_;
  TrainOptions train_;
  Model model_;
  TrainedWeights weights_;
  std::unique_ptr<Parameters> scratch_;
  std::optional<ArenaScope> turn_;  // while what follows is made
  PackedForward forward_;
  WeightUpdate update_;
  StepScores scores_;
};

}  // namespace tailrace
