// An update of the weights: the gradient of a pass over its sequences, the optimizer, the biases of
// experts, and what products read. A critic that there is listens to the passes, and is updated
// with the policy, or for itself.
//
// On a GPU an update is only asked for. What it measured comes back with the report of the
// optimizer. Ranks exchange memory of the host, and wait; so does a watcher of log-probabilities.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/model/model.h"
#include "kernels/base/device.h"
#include "trainer/critic.h"
#include "trainer/expert_balancer.h"
#include "trainer/gradient_tree.h"
#include "trainer/optimizer.h"
#include "trainer/options.h"
#include "trainer/trained_weights.h"
#include "trainer/update_loss.h"

namespace tailrace {

std::vector<PackedSequence> packed_views(std::span<const TrainSequence> sequences);

// Hears of each sequence of an update, in every pass, the log-probabilities of its targets that the
// loss is made of.
using LogprobSink = std::function<void(const TrainSequence&, std::span<const float> logprobs)>;

class WeightUpdate {
 public:
  // Borrows all but the options.
  WeightUpdate(const Stream& stream, const Model& model, PackedForward& forward,
               TrainedWeights& weights, const TrainOptions& train);

  // Bytes that its loss allocates beside the gradients, on a GPU: for micro-batches of these sizes.
  static int64_t loss_bytes(Device device, const TrainOptions& train, int64_t max_sequence_tokens);

  // See PolicyTrainer. join() shares what the optimizer and the critic know, and no weights.
  void join(Collective* ranks);
  void reset_optimizer(const OptimOptions& options);
  Optimizer& optimizer();
  void use_critic(const CriticOptions& options);
  Critic* critic() { return critic_.get(); }
  void watch_logprobs(LogprobSink sink) { watch_.sink = std::move(sink); }
  GradientTree& tree() { return tree_; }
  const GradientTree& tree() const { return tree_; }
  // Forward and backward of these without an update; nothing that counts remembers it.
  void rehearse(std::span<const PackedSequence> sequences);

  // Each makes an update, whose reports are still to be taken: from take() and the optimizer.
  // `done`: the share of the run that lies before it.
  void policy(const PolicyPass& pass, double done);
  void supervised(std::span<const PackedSequence> sequences, double weight, double done);
  // On a loss of its caller, which is told of its end; so many sequences stay together.
  void rows(std::span<const PackedSequence> sequences, LossPass& loss, size_t together,
            double done);
  // Updates the critic alone.
  void critic_alone(const PolicyPass& pass);

  // The same in two: the gradient of a part of a step is added to `sum`, and its loads to `loads`;
  // an update is made of the sums of all parts.
  void gather(const PolicyPass& pass, Parameters& sum, ExpertLoads& loads);
  void apply(const Parameters& sum, const ExpertLoads& loads, double done);

  // Reports of policy(), supervised() and gather() since the last call or forget(). Waits for the
  // stream where the loss is there.
  std::vector<UpdateReport> take() { return loss_->take(); }
  void forget() { loss_->forget(); }
  // experts/... and critic/... of the updates since the last call. `batch`: of the step.
  MetricList take_metrics(const TrainBatch& batch);

 private:
  // Another rank may listen to what this one computes.
  struct Watch : PassListener {
    void begin(const PolicyPass& pass) override;
    void add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output) override;
    void end(const GradientTree& tree) override;

    LogprobSink sink;  // empty: nobody listens
    std::span<const TrainSequence> sequences;
    std::vector<float> seen;  // of those of this rank
  };

  // Listeners of a pass that the policy learns from.
  std::vector<PassListener*> listeners();
  void backward(const PolicyPass& pass, Parameters* sum);
  void apply(const Parameters& gradients, double done);

  Stream stream_;
  const Model& model_;
  TrainedWeights& weights_;
  GradientTree tree_;
  ExpertBalancer balance_;
  std::unique_ptr<UpdateLoss> loss_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Critic> critic_;  // null: there is none
  Watch watch_;
};

}  // namespace tailrace
