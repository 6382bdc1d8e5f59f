// Per-token estimates of KL(policy || other) at a sampled token, used as losses (J. Schulman's
// k1..k3).
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/base/options.h"

namespace tailrace {

enum class KlEstimator : uint8_t { kK1, kK2, kK3 };
constexpr auto enum_names(KlEstimator) {
  using enum KlEstimator;
  return name_table<KlEstimator>({{kK1, "k1"}, {kK2, "k2"}, {kK3, "k3"}});
}

struct KlTerm {
  double value = 0, d_logprob = 0;
};

// x = log policy - log other:  k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x.
// On-policy the expected gradient of k1 is zero, of k2 that of KL(policy || other), of k3 that of
// KL(other || policy).
KlTerm kl_term(KlEstimator estimator, double x);

// The other policy of the KL term.
enum class KlTarget : uint8_t { kReference, kBehaviour };
constexpr auto enum_names(KlTarget) {
  using enum KlTarget;
  return name_table<KlTarget>({{kReference, "ref"}, {kBehaviour, "behaviour"}});
}

// Where the penalty is.
enum class KlPlacement : uint8_t {
  kLoss,    // a term of the loss
  kReward,  // taken from the reward of each token, detached (k1 of l_old)
};
constexpr auto enum_names(KlPlacement) {
  using enum KlPlacement;
  return name_table<KlPlacement>({{kLoss, "loss"}, {kReward, "reward"}});
}

// A penalty for leaving another policy (reference 1707.06347; k1..k3: J. Schulman).
struct KlOptions {
  double coef = 0;
  KlEstimator estimator = KlEstimator::kK3;
  KlTarget target = KlTarget::kReference;
  KlPlacement placement = KlPlacement::kLoss;
  // In the loss: times exp(l - l_old), which is differentiated too. Off the policy that samples,
  // the gradient of k3 is then exactly that of KL(policy || other) (DeepSeek-V3.2).
  bool unbiased = false;

  bool in_loss() const { return placement == KlPlacement::kLoss; }
  bool in_reward() const { return coef != 0 && placement == KlPlacement::kReward; }
  // Whether a run keeps weights of the start to compute l_ref with.
  bool needs_reference() const { return coef != 0 && target == KlTarget::kReference; }

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: its full key ("algo.kl"). Throws UserError with the key.
void validate(const KlOptions& options, std::string_view section);

}  // namespace tailrace
