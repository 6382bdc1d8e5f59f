// The section `algo` of a run's configuration.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/options.h"

namespace tailrace {

// A penalty for leaving another policy, added to the loss (reference 1707.06347; k1..k3: J.
// Schulman).
struct KlOptions {
  double coef = 0;
  std::string estimator = "k3";
  std::string target = "ref";

  void visit(OptionVisitor& v);
};

// What is done when the policy that sampled a token is not the one that the update starts from.
struct CorrectionOptions {
  std::string kind = "tis";
  std::string level = "token";
  double cap = 2;

  void visit(OptionVisitor& v);
};

// The policy loss as a point on independent axes. `name` is a preset: reading it sets every field
// to the values of its paper, and the fields that follow it override them.
struct AlgoOptions {
  std::string name = "default";
  std::string advantage = "group_mean";
  double std_eps = 1e-6;
  std::string filter_zero_signal = "drop";
  std::string ratio = "token";
  std::string surrogate = "ppo_clip";
  double clip_low = 0.2, clip_high = 0.28, clip_c = 0;
  std::string loss_agg = "token_mean_global";
  int64_t loss_const_tokens = 0;
  KlOptions kl;
  double entropy_coef = 0;
  CorrectionOptions correction;

  // The values of a preset; the name must be one of preset_names().
  static AlgoOptions preset(std::string_view name);
  static std::vector<std::string_view> preset_names();

  void visit(OptionVisitor& v);

 private:
  std::string applied_preset_ = "default";  // what `name` was when its values were last set
};

// Rules over several fields. `where` names the section in the message ("algo"). Throws UserError.
void validate(const AlgoOptions& options, std::string_view where);

}  // namespace tailrace
