// Keeps the experts of a sparse model in use: the loss and the bias of train.balance_coef and
// train.balance_bias_rate, and what the metrics say of the loads. Of a dense model it does nothing.
//
// Loads are counted for an update, and those of the updates that were made for a step.
//
// Thread: one at a time.
#pragma once

#include <cstdint>

#include "core/base/metric_list.h"
#include "core/collective/collective.h"
#include "core/model/expert_loads.h"
#include "core/model/parameters.h"

namespace tailrace {

class ExpertBalancer {
 public:
  // coef: of the loss, below 0 the model's own. bias_rate: 0, or the model must have the biases.
  // Borrows the model's shape.
  ExpertBalancer(const ModelConfig& config, double coef, double bias_rate);

  // Of the passes of an update with so many tokens in its sequences; forgets the loads of one that
  // was not made.
  BalancePass begin(int64_t tokens);
  // Adds up the loads of all ranks, in their order; null: there is one.
  void gather(Collective* ranks);
  // The loads of the passes since begin() to and from a step that streams.
  void move_to(ExpertLoads& loads);
  void take_back(const ExpertLoads& loads) { update_.add(loads); }

  bool moves_bias() const { return bias_rate_ != 0; }
  // 2408.15664: b += rate * sign(mean - choices), by the loads of the update.
  void move_bias(Parameters& parameters) const;
  // Behind each update that was made or skipped.
  void end_update();

  // experts/... of the updates since the last call, which it forgets.
  MetricList take_metrics(const Parameters& parameters);
  void forget();  // all loads

 private:
  const ModelConfig& config_;
  double coef_, bias_rate_;
  ExpertLoads update_, step_;
};

}  // namespace tailrace
