// The loss that a pass over the sequences of an update minimises, and its listeners. The gradient
// tree (gradient_tree.h) drives both and knows neither.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/model/parameters.h"
#include "kernels/base/view.h"
#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/packed_forward.h"

namespace tailrace {

class GradientTree;

// The policy's loss over the sequences of an update; borrows them until the pass has ended.
struct PolicyPass {
  PolicyLossConfig loss = {};
  std::span<const TrainSequence> sequences = {};
  LossCounts counts = {};  // the denominators, of all ranks
  int64_t version = 0;     // of the weights that compute
};

// -weight * (sum of the log-probabilities of all targets).
struct SupervisedPass {
  double weight = 1;
};

class LossPass {
 public:
  virtual ~LossPass() = default;

  struct Wants {
    bool entropy = false;           // of each target
    bool entropy_gradient = false;  // else dentropy is empty
    bool on_device = false;         // it reads and writes memory of a device that is not the CPU
    bool states = false;            // it has a head of its own: add_states() in the place of add()
  };
  virtual Wants wants() const = 0;

  // The loss of the sequences [begin, end) of the pass, which are in this slot: writes its gradient
  // to every target, [targets] both.
  virtual void add(size_t /*slot*/, size_t /*begin*/, size_t /*end*/,
                   const PackedForward::Output& /*output*/, std::span<float> /*dlogprob*/,
                   std::span<float> /*dentropy*/) {}

  // Of a head of its own, on the CPU: reads the hidden state in front of every target, writes the
  // gradient of each, [targets, hidden_size] both, and adds that of the head to `gradients`.
  virtual void add_states(size_t /*begin*/, size_t /*end*/, ConstMatrix /*hidden*/,
                          Matrix /*dhidden*/, Parameters& /*gradients*/) {}

  // The same without a gradient, which PolicyTrainer::row_evaluation() asks for.
  virtual void measure_states(size_t /*begin*/, size_t /*end*/, ConstMatrix /*hidden*/) {}

  // Behind all passes; all ranks call it.
  virtual void end(const GradientTree& /*tree*/) {}
};

// Hears of the forward passes of a policy's update, in memory of the host, and changes none.
class PassListener {
 public:
  virtual ~PassListener() = default;

  virtual void begin(const PolicyPass& pass) = 0;  // forgets a pass that did not end
  virtual void add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output) = 0;
  virtual void end(const GradientTree& tree) = 0;  // all ranks call it
};

}  // namespace tailrace
