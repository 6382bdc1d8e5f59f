// The section `algo` of a run's configuration.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "trainer/loss/advantage.h"
#include "trainer/loss/aggregation.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/credit.h"
#include "trainer/loss/imitation.h"
#include "trainer/loss/kl_estimator.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/loss/preset_names.h"
#include "trainer/loss/returns.h"
#include "trainer/loss/shaping.h"
#include "trainer/loss/surrogate.h"

namespace tailrace {

// Training's answer to truncated sampling (top-k, top-p, min-p), which draws from a part of the
// policy's distribution. none: the trained policy is the whole distribution, and the draw is off it
// by the mass that was kept. keep: the kept sets travel with the tokens and the trained policy is
// restricted to them, so that draw and policy are the same distribution.
enum class SamplingMask : uint8_t { kNone, kKeep };
constexpr auto enum_names(SamplingMask) {
  return name_table<SamplingMask>({{SamplingMask::kNone, "none"}, {SamplingMask::kKeep, "keep"}});
}

// Whose choice of experts a sparse model is trained with. off: the trainer's own, made anew in each
// pass. replay: that of the pass that sampled a token (2510.11370), so that other weights or
// another numerics class cannot move it.
enum class RouterReplay : uint8_t { kOff, kReplay };
constexpr auto enum_names(RouterReplay) {
  return name_table<RouterReplay>({{RouterReplay::kOff, "off"}, {RouterReplay::kReplay, "replay"}});
}

// The policy loss as a point on independent axes. `name` is a preset (OptionVisitor::preset): the
// values of its paper, which keys of the same layer or of a later one override. What an axis needs
// is the struct of its own file; its keys stand side by side in `algo`.
struct AlgoOptions {
  AlgoPreset name = AlgoPreset::kDefault;
  AdvantageKind advantage = AdvantageKind::kGroupMean;
  double std_eps = 1e-6;
  ZeroSignalFilter filter_zero_signal = ZeroSignalFilter::kDrop;
  std::string filter_metric = "reward";  // by which a group has a signal
  ReturnOptions returns = {};            // gamma, lambda, whiten_advantages
  CreditOptions credit = {};
  LengthOptions length = {};
  TruncatedSamples truncated = TruncatedSamples::kKeep;
  RatioUnit ratio = RatioUnit::kToken;
  SurrogateConfig surrogate = {};
  AggregationConfig aggregation = {};  // loss_agg, loss_const_tokens
  KlOptions kl = {};
  double entropy_coef = 0;
  ImitationOptions imitation = {};
  DistillOptions distill = {};
  CorrectionOptions correction = {};
  SamplingMask sampling_mask = SamplingMask::kNone;
  RouterReplay router_replay = RouterReplay::kOff;

  static const AlgoOptions& preset(AlgoPreset preset);  // presets.cc
  // Which keys a preset sets: all that its row reads, but for what is no part of an algorithm.
  static std::vector<std::string> preset_keys(AlgoPreset preset);

  void visit(OptionVisitor& v);
};

// The part that the loss reads.
PolicyLossConfig policy_loss_config(const AlgoOptions& options);

// Rules over several fields: those of each axis, in its file, and those between axes. `section`:
// its full key ("algo"). Throws UserError with the key.
void validate(const AlgoOptions& options, std::string_view section);

}  // namespace tailrace
