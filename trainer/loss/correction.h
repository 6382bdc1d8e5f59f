// Axis "correction" of the policy loss: a detached weight for tokens whose behaviour policy is not
// the one that the update starts from (stale weights, another numerics class).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tailrace {

enum class CorrectionKind : uint8_t { kNone, kTis };
enum class CorrectionLevel : uint8_t { kToken, kSequence };

struct CorrectionConfig {
  CorrectionKind kind = CorrectionKind::kTis;
  CorrectionLevel level = CorrectionLevel::kToken;
  double cap = 2;
};
CorrectionKind parse_correction(std::string_view name);         // a value of algo.correction.kind
CorrectionLevel parse_correction_level(std::string_view name);  // a value of algo.correction.level

// Truncated importance sampling: weight = min(exp(l_old - l_inf), cap); at level kSequence the
// exponent is the sum over the sequence.
//   log_weight [tokens] l_old - l_inf, already clamped; one sequence
//   weight     [tokens]
// Returns how many weights the cap has cut.
int64_t correction_weights(const CorrectionConfig& config, std::span<const double> log_weight,
                           std::span<double> weight);

}  // namespace tailrace
