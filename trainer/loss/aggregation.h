// Axis "aggregation" of the policy loss: the weight with which a token's loss enters the sum.
//
// Every denominator is a count over the whole minibatch (one optimizer update), passed in from
// outside: micro-batches and ranks then add up, and their means are never averaged.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace {

enum class AggregationKind : uint8_t {
  kTokenMean,             // 1 / tokens
  kSeqMeanTokenMean,      // 1 / (trajectories * tokens of this trajectory)
  kSeqMeanTokenSumConst,  // 1 / (trajectories * const_tokens)
  kSeqMeanTokenSum,       // 1 / trajectories
};
constexpr auto enum_names(AggregationKind) {
  using enum AggregationKind;
  return name_table<AggregationKind>({{kTokenMean, "token_mean_global"},
                                      {kSeqMeanTokenMean, "seq_mean_token_mean"},
                                      {kSeqMeanTokenSumConst, "seq_mean_token_sum_const"},
                                      {kSeqMeanTokenSum, "seq_mean_token_sum"}});
}

// Keys of the section `algo` itself: loss_agg, loss_const_tokens.
struct AggregationConfig {
  AggregationKind kind = AggregationKind::kTokenMean;
  int64_t const_tokens = 0;  // kSeqMeanTokenSumConst only

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: the full key of theirs ("algo"). Throws UserError with the
// key.
void validate(const AggregationConfig& options, std::string_view section);

// Trained tokens of the whole minibatch. A trajectory of many segments counts once; one without
// trained tokens does not count.
struct LossCounts {
  int64_t tokens = 0;
  int64_t trajectories = 0;
  std::span<const int32_t> trajectory_tokens = {};  // by trajectory id
  // The weight of CorrectionOptions, mean a token, which its `normalize` divides by.
  double mean_correction = 1;
};

double token_weight(const AggregationConfig& config, const LossCounts& counts, int32_t trajectory);

// The part of token_weight() that is the same for all tokens. Where the counts are not known yet,
// one token and one trajectory stand for them, and this, of the true ones, makes up for it in the
// end.
double common_weight(const AggregationConfig& config, const LossCounts& counts);

}  // namespace tailrace
