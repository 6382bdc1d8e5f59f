#include "trainer/loss/aggregation.h"

#include <fmt/format.h>

#include "core/base/error.h"
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

// The factor that token_weight() has in common for all tokens of a step. With counts of 1 in its
// place passes can be summed before the step is whole (TrainStep::add()).
double common_weight(const AggregationConfig& config, const LossCounts& counts) {
  const bool by_token = config.kind == AggregationKind::kTokenMean;
  return 1.0 / static_cast<double>(by_token ? counts.tokens : counts.trajectories);
}

void AggregationConfig::visit(OptionVisitor& v) {
  v.field(
      "loss_agg", kind,
      {.help = "how token losses become one number; all counts are those of the whole minibatch"});
  v.field("loss_const_tokens", const_tokens,
          {.help = "the constant of seq_mean_token_sum_const; 0: the most tokens that an episode "
                   "can sample (rollout.max_turns x rollout.max_action_tokens, or what fits the "
                   "context where that is less)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle_if(
               kind != AggregationKind::kSeqMeanTokenSumConst,
               fmt::format("{{loss_agg}} is {}, which divides by no constant", name_of(kind)),
               {"loss_agg", "name"})});
}

void validate(const AggregationConfig& o, std::string_view section) {
  if (o.kind == AggregationKind::kSeqMeanTokenSumConst && o.const_tokens < 1) {
    throw UserError::at(join_key(section, "loss_const_tokens"),
                        "is {}; loss_agg {} divides by it. Try the response limit.", o.const_tokens,
                        name_of(o.kind));
  }
}

}  // namespace tailrace
