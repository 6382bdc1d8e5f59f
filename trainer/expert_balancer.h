// Keeps the experts of a sparse model in use: the loss and the bias of train.balance_coef and
// train.balance_bias_rate, and what the metrics say of the loads. Of a dense model it does nothing.
//
// Loads are counted for an update, and those of the updates that were made for a step. Where the
// model is on a GPU they are counted there, and come back for who needs them: ranks, biases and
// steps that stream once an update, metrics once a step.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/model/expert_loads.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"

namespace tailrace {

class ExpertBalancer {
 public:
  // coef: of the loss, below 0 the model's own. bias_rate: 0, or the model must have the biases.
  // Borrows the model's shape. `stream`: of its passes.
  ExpertBalancer(const ModelConfig& config, double coef, double bias_rate,
                 const Stream& stream = {});
  ExpertBalancer(const ExpertBalancer&) = delete;  // copies to the host may be under way
  ~ExpertBalancer() { wait(stream_); }
  static int64_t bytes(const ModelConfig& config);  // on a GPU, of both sides

  // Begins the passes of an update with so many tokens in its sequences; forgets the loads of an
  // update that was not made.
  BalancePass begin(int64_t tokens);
  // Adds up the loads of all ranks, in their order; null: there is one.
  void gather(Collective* ranks);
  // The loads of the passes since begin() to and from a step that streams.
  void move_to(ExpertLoads& loads);
  void take_back(const ExpertLoads& loads);

  bool moves_bias() const { return bias_rate_ != 0; }
  // 2408.15664: b += rate * sign(mean - choices), by the loads of the update.
  void move_bias(Parameters& parameters);
  // Behind each update that was made or skipped.
  void end_update();

  // experts/... of the updates since the last call, which it forgets.
  MetricList take_metrics(const Parameters& parameters);
  void forget();  // all loads

 private:
  // Counts on a GPU or on the host: [sparse layers * experts].
  struct Counts {
    std::span<int64_t> choices;
    std::span<double> losses;

    Counts() = default;
    Counts(Workspace& memory, const ModelConfig& config);
    static size_t bytes(const ModelConfig& config);
  };
  static constexpr size_t kPending = 16;  // updates whose counts may be under way

  bool counts_on_device() const { return device_.size() > 0; }
  void fetch(size_t place);  // asks for the counts of the update
  void settle_update();      // waits for them: they are in update_
  void settle_step();        // waits for those of the updates that were made: they are in step_
  Counts arrived(size_t place);

  const ModelConfig& config_;
  double coef_, bias_rate_;
  ExpertLoads update_, step_;
  Stream stream_;
  Buffer device_;  // counts of the update; of no bytes where they are in update_
  Buffer host_;    // pinned: zeros, then kPending + 1 times what arrives
  Counts on_device_;
  bool is_counting_ = false;  // the update has counts on the device that nobody fetched
  size_t pending_ = 0;
};

}  // namespace tailrace
