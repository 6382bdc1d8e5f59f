// Axis "reward shaping" of the policy loss: what a sample's length does to its reward.
//
// The reward that a run reports, and by which it finds groups without signal, stays that of the
// environment: length alone would make every group look as if it had something to teach.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace {

enum class LengthPenalty : uint8_t {
  kNone,
  kSoftOverlong,  // grows from limit - buffer on, to -factor at the limit   DAPO, 2503.14476
  kKimi,          // by length within the group, failures never gain         Kimi k1.5, 2501.12599
};
constexpr auto enum_names(LengthPenalty) {
  using enum LengthPenalty;
  return name_table<LengthPenalty>(
      {{kNone, "none"}, {kSoftOverlong, "soft_overlong"}, {kKimi, "kimi"}});
}

// The treatment of samples that a limit has cut.
enum class TruncatedSamples : uint8_t {
  kKeep,       // they end where they end, with the reward that they have
  kMask,       // no loss, but their reward stays in the baseline   (overlong filtering, 2503.14476)
  kBootstrap,  // with a critic: they would have gone on, to the value where they were cut
};
constexpr auto enum_names(TruncatedSamples) {
  using enum TruncatedSamples;
  return name_table<TruncatedSamples>(
      {{kKeep, "keep"}, {kMask, "mask"}, {kBootstrap, "bootstrap"}});
}

// The section `algo.length`.
struct LengthOptions {
  LengthPenalty penalty = LengthPenalty::kNone;
  double factor = 1;   // kSoftOverlong: the whole penalty; kKimi: from the shortest to the longest
  int64_t limit = 0;   // sampled tokens; kSoftOverlong
  int64_t buffer = 0;  // kSoftOverlong

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: its full key ("algo.length"). Throws UserError with the
// key.
void validate(const LengthOptions& options, std::string_view section);

// The penalty that is added to each reward. lengths [samples] in sampled tokens, `success`
// [samples]; members of a group side by side, group_offsets [groups + 1].
std::vector<double> length_penalties(const LengthOptions& options, std::span<const int64_t> lengths,
                                     std::span<const uint8_t> success,
                                     std::span<const int32_t> group_offsets);

}  // namespace tailrace
