// Axis "correction" of the policy loss: a detached weight for tokens whose behaviour policy is not
// the one that the update starts from (stale weights, another numerics class, truncated sampling).
#pragma once

#include <cstdint>
#include <span>

#include "core/base/options.h"

namespace tailrace {

enum class CorrectionKind : uint8_t { kNone, kTis };
constexpr auto enum_names(CorrectionKind) {
  using enum CorrectionKind;
  return name_table<CorrectionKind>({{kNone, "none"}, {kTis, "tis"}});
}

enum class CorrectionLevel : uint8_t { kToken, kSequence };
constexpr auto enum_names(CorrectionLevel) {
  using enum CorrectionLevel;
  return name_table<CorrectionLevel>({{kToken, "token"}, {kSequence, "sequence"}});
}

// The section `algo.correction`.
struct CorrectionOptions {
  CorrectionKind kind = CorrectionKind::kTis;
  CorrectionLevel level = CorrectionLevel::kToken;
  double cap = 2;

  void visit(OptionVisitor& v);
};

// Truncated importance sampling: weight = min(exp(l_old - l_inf), cap); at level kSequence the
// exponent is the sum over the sequence.
//   log_weight [tokens] l_old - l_inf, already clamped; one sequence
//   weight     [tokens]
// Returns how many weights the cap has cut.
int64_t correction_weights(const CorrectionOptions& options, std::span<const double> log_weight,
                           std::span<double> weight);

// What importance weights w = exp(log_weight) leave of n samples, as a share of n (the effective
// sample size of Kong 1992, over n): (sum w)^2 / (n sum w^2). Exactly 1 where all are equal, 1 / n
// where one outweighs the others. Of any magnitude; at least one.
double effective_sample_share(std::span<const double> log_weight);

}  // namespace tailrace
