// The imitation term of IPA (2512.24873): success is also learned as a demonstration.
//
//   L = - sum over turns c of successes of  sg(pi(c) G_c) log pi(c)
//
// G_c is the advantage of the turn, its discounted return (CreditKind::kTurnReturn). Tokens whose
// advantage is not above 0 are no example. Likelier turns weigh more, so that the term settles what
// the policy can do already.
//
// Thread: any; a pure function.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "kernels/ops/loss_terms.h"

namespace tailrace {

constexpr auto enum_names(ImitationLevel) {
  using enum ImitationLevel;
  return name_table<ImitationLevel>({{kTokenMean, "token_mean"}, {kTurn, "turn"}});
}

// The section `algo.imitation`.
struct ImitationOptions {
  double coef = 0;  // of the term, beside the policy's; 0: off
  ImitationLevel level = ImitationLevel::kTokenMean;

  void visit(OptionVisitor& v);
};

// pi(c) of the turn whose tokens have these log-probabilities, at least one. With it a token's loss
// is -sg(pi(c) max(A, 0)) l, and the sum over the turn's tokens is the term above.
double turn_probability(ImitationLevel level, std::span<const double> logprob);

}  // namespace tailrace
