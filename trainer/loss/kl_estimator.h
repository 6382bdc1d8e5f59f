// Per-token estimates of KL(policy || other) at a sampled token, used as losses (J. Schulman's
// k1..k3): kl_term() of kernels/ops/loss_terms.h.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "kernels/ops/loss_terms.h"

namespace tailrace {

constexpr auto enum_names(KlEstimator) {
  using enum KlEstimator;
  return name_table<KlEstimator>({{kK1, "k1"}, {kK2, "k2"}, {kK3, "k3"}});
}

// The other policy of the KL term.
enum class KlTarget : uint8_t { kReference, kBehaviour };
constexpr auto enum_names(KlTarget) {
  using enum KlTarget;
  return name_table<KlTarget>({{kReference, "ref"}, {kBehaviour, "behaviour"}});
}

// Which weights the reference is.
enum class KlReference : uint8_t {
  kStart,  // those of the policy at the start of RL
  kBase,   // of an adapter: the model beside which it is trained, without it
};
constexpr auto enum_names(KlReference) {
  using enum KlReference;
  return name_table<KlReference>({{kStart, "start"}, {kBase, "base"}});
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
  KlReference reference = KlReference::kStart;
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
