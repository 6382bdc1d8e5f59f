// Axis "correction" of the policy loss: a detached weight for tokens whose behaviour policy is not
// the one that the update starts from (stale weights, another numerics class, truncated sampling).
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/config/options.h"

namespace tailrace {

// With w = exp(l_old - l_inf) of the token, or of what `level` says:
enum class CorrectionKind : uint8_t {
  kNone,    // 1
  kTis,     // min(w, cap)                                 truncated importance sampling
  kIcePop,  // w in [low, cap], else 0                     Ring-1T, 2510.18855
  kMis,     // as kIcePop, and 0 for a whole sequence in which a token has w < veto
  kMask,    // 1 in [low, cap], else 0                     rejection; IPA's, 2512.24873
};
constexpr auto enum_names(CorrectionKind) {
  using enum CorrectionKind;
  return name_table<CorrectionKind>(
      {{kNone, "none"}, {kTis, "tis"}, {kIcePop, "icepop"}, {kMis, "mis"}, {kMask, "mask"}});
}
// Whether its weights can be 0, so that it reads `low`.
bool rejects(CorrectionKind kind);

enum class CorrectionLevel : uint8_t {
  kToken,
  kSequence,      // the product over a sequence
  kSequenceMean,  // the geometric mean over a sequence: a test, not an unbiased weight
  kTurnMean,      // the same over a turn
};
constexpr auto enum_names(CorrectionLevel) {
  using enum CorrectionLevel;
  return name_table<CorrectionLevel>({{kToken, "token"},
                                      {kSequence, "sequence"},
                                      {kSequenceMean, "sequence_mean"},
                                      {kTurnMean, "turn_mean"}});
}

// The place of rejected tokens in the denominators of the loss.
enum class RejectedTokens : uint8_t {
  kCount,  // they stay, so that a step with many learns less
  kLeave,  // they are no trained tokens
};
constexpr auto enum_names(RejectedTokens) {
  using enum RejectedTokens;
  return name_table<RejectedTokens>({{kCount, "count"}, {kLeave, "leave"}});
}

// The section `algo.correction`.
struct CorrectionOptions {
  CorrectionKind kind = CorrectionKind::kTis;
  CorrectionLevel level = CorrectionLevel::kToken;
  double low = 0.5;
  double cap = 2;
  double veto = 1e-4;
  RejectedTokens rejected = RejectedTokens::kCount;
  // Weights are divided by their mean over the trained tokens of the minibatch (slime, verl), which
  // LossCounts has: a step then learns as much whatever was cut.
  bool normalize = false;
  // Off-policy sequence masking (DeepSeek-V3.2): tokens with A < 0 of a sequence with
  // mean(l_inf - l) above it lose their loss. 0: off.
  double sequence_mask = 0;

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: its full key ("algo.correction"). Throws UserError with the
// key.
void validate(const CorrectionOptions& options, std::string_view section);

// One sequence.
//   log_weight [tokens] l_old - l_inf, already clamped
//   turn       [tokens]
//   weight     [tokens]
// Returns how many weights were cut by the cap, or rejected.
int64_t correction_weights(const CorrectionOptions& options, std::span<const double> log_weight,
                           std::span<const int32_t> turn, std::span<double> weight);

// The share that importance weights w = exp(log_weight) leave of n samples (the effective sample
// size of Kong 1992, over n): (sum w)^2 / (n sum w^2). Exactly 1 where all are equal, 1 / n
// where one outweighs the others. Of any magnitude; at least one.
double effective_sample_share(std::span<const double> log_weight);

}  // namespace tailrace
