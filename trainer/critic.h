// The critic of PPO: a linear head on the hidden states that predict the targets,
//   v_t = w . (h_(t-1) - m) + c
// where h_(t-1) is what the policy's own head reads (after the final norm). It is detached: no
// gradient goes from it into the policy, whose bits do not know that there is a critic.
//
// m and c are running means of the states and of the returns. Hidden states have a large part in
// common, and returns a mean that moves as the policy learns: where w had to learn that mean too,
// it would be nearly all that it learns, with another error at each kind of token (van Hasselt et
// al. 2016, 1602.07714, of returns; LeCun et al. 1998, "Efficient BackProp", of inputs). So w
// begins at 0 and learns differences alone, by AdamW of its own at a constant rate.
//
// Values, gradients and moments are computed in double and kept as float32. Sums are made in the
// slots of the gradient tree, so that they are the same for any number of threads, ranks and
// micro-batches.
//
// It listens to the passes of an update, which apply() then makes. One that loses a rank before
// apply() changes nothing.
//
// Thread: one at a time. Hidden states must be in the memory of the host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/digest.h"
#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "trainer/batch.h"
#include "trainer/loss_pass.h"
#include "trainer/options.h"

namespace tailrace {

class Critic : public PassListener {
 public:
  Critic(int64_t hidden_size, int64_t slots, const CriticOptions& options);
  // Bytes that the same arguments allocate.
  static int64_t bytes(int64_t hidden_size, int64_t slots);

  const CriticOptions& options() const { return options_; }

  // hidden [targets, hidden_size]; one value a row.
  std::vector<float> values(ConstMatrix hidden) const;

  // Sequences whose old values and returns are all set. Of the pass it reads these and the count of
  // tokens; rejected ones (TrainSequence::mask) teach nothing.
  void begin(const PolicyPass& pass) override;
  void add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output) override;
  void end(const GradientTree& tree) override;
  // A gradient that is not finite changes nothing, and is in the metrics.
  void apply();
  int64_t updates() const { return updates_; }  // applied or refused

  // critic/... of the updates since the last call, which it forgets. `batch`: of the step.
  MetricList take_metrics(const TrainBatch& batch);

  // Sends the state of rank 0 to all ranks.
  void share(Collective& ranks);
  Digest digest() const;  // of weights, moments and counts
  // Weights, moments and counts. Both throw UserError; load() also for a file of another model.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

 private:
  struct Tensor {
    const char* name;
    std::span<float> values;
  };
  std::vector<Tensor> tensors() const;
  // Over trained targets, with d the derivative by a target's value.
  struct Sums {
    explicit Sums(std::span<double> row);  // [2 hidden_size + 4]

    std::span<double> d_state, state;  // d h and h [hidden_size]
    double &d, &returns, &tokens, &loss;
  };

  int64_t hidden_size_, slots_;
  CriticOptions options_;
  Buffer state_memory_, sums_memory_;
  std::span<float> state_;
  // All of it: w with both of its moments, and the mean state [hidden_size]; the mean return [1].
  std::span<float> weight_, m_, v_, mean_, mean_return_;
  std::span<double> sums_;  // [slots] of Sums
  PolicyPass pass_;
  int64_t updates_ = 0, applied_ = 0;
  // Since take_metrics().
  double loss_sum_ = 0, norm_sum_ = 0;
  int64_t reported_ = 0;
};

}  // namespace tailrace
