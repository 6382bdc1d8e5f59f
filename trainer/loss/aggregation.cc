#include "trainer/loss/aggregation.h"

#include "kernels/base/check.h"

namespace tailrace {

double token_weight(const AggregationConfig& config, const LossCounts& counts, int32_t trajectory) {
  // A weight and not a mean: what micro-batches give is added up, whatever cut they have.
  auto trajectories = static_cast<double>(counts.trajectories);
  switch (config.kind) {
    case AggregationKind::kTokenMean:
      return 1.0 / static_cast<double>(counts.tokens);
    case AggregationKind::kSeqMeanTokenMean: {
      TR_CHECK(static_cast<size_t>(trajectory) < counts.trajectory_tokens.size(),
               "trajectory {} of {}", trajectory, counts.trajectory_tokens.size());
      return 1.0 / (trajectories * counts.trajectory_tokens[static_cast<size_t>(trajectory)]);
    }
    case AggregationKind::kSeqMeanTokenSumConst:
      return 1.0 / (trajectories * static_cast<double>(config.const_tokens));
    case AggregationKind::kSeqMeanTokenSum:
      return 1.0 / trajectories;
  }
  TR_CHECK(false, "aggregation {}", static_cast<int>(config.kind));
  return 0;
}

double common_weight(const AggregationConfig& config, const LossCounts& counts) {
  const bool by_token = config.kind == AggregationKind::kTokenMean;
  return 1.0 / static_cast<double>(by_token ? counts.tokens : counts.trajectories);
}

}  // namespace tailrace
