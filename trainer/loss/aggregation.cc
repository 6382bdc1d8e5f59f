#include "trainer/loss/aggregation.h"

#include "kernels/base/check.h"

namespace tailrace {

AggregationKind parse_aggregation(std::string_view name) {
  if (name == "token_mean_global") return AggregationKind::kTokenMean;
  if (name == "seq_mean_token_mean") return AggregationKind::kSeqMeanTokenMean;
  if (name == "seq_mean_token_sum_const") return AggregationKind::kSeqMeanTokenSumConst;
  TR_CHECK(false, "aggregation '{}' passed the options but is unknown", name);
  return {};
}

double token_weight(const AggregationConfig& config, const LossCounts& counts, int32_t trajectory) {
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
      return 1.0 / (trajectories * config.const_tokens);
  }
  TR_CHECK(false, "aggregation {}", static_cast<int>(config.kind));
  return 0;
}

}  // namespace tailrace
