// Axis "credit" of the policy loss: what of a trajectory's advantage each of its turns gets.
//
// A turn is one answer of the policy, by the explicit number that it has in its trajectory: runs of
// trained tokens would merge turns that touch and split those of which a filter takes a token.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "trainer/loss/advantage.h"
#include "trainer/loss/returns.h"

namespace tailrace {

enum class CreditKind : uint8_t {
  kTrajectory,    // all turns the same
  kTurnReturn,    // the return from the turn on, discounted by turns   IPA, 2512.24873
  kGigpo,         // and how the turn did among all that met its state   GiGPO, 2505.10978
  kTurningPoint,  // what the turn changed of the expected outcome   TurningPoint-GRPO, 2602.06422
};
constexpr auto enum_names(CreditKind) {
  using enum CreditKind;
  return name_table<CreditKind>({{kTrajectory, "trajectory"},
                                 {kTurnReturn, "turn_return"},
                                 {kGigpo, "gigpo"},
                                 {kTurningPoint, "turning_point"}});
}

// The kind of returns that such advantages become, token by token (returns.h). Tokens have rewards
// with a critic, and with a reward without a baseline that no credit has shared among turns.
ReturnKind return_kind(AdvantageKind advantage, CreditKind credit);

// The section `algo.credit`.
struct CreditOptions {
  CreditKind kind = CreditKind::kTrajectory;
  double gamma = 0.95;  // a turn; kTurnReturn, kGigpo
  double weight = 1;    // of the part below the trajectory; kGigpo

  void visit(OptionVisitor& v);
};

// Whether the advantage of a turn is made of its discounted return.
constexpr bool goes_by_returns(CreditKind kind) {
  return kind == CreditKind::kTurnReturn || kind == CreditKind::kGigpo;
}

// A trajectory as credit sees it.
struct TurnFacts {
  double advantage = 0;                    // of the trajectory
  double baseline = 0, scale = 1;          // advantage = (sum of rewards - baseline) * scale
  std::span<const double> rewards = {};    // [turns] at least one
  std::span<const uint64_t> anchors = {};  // [turns] the state that was answered in; 0: not known
};

// The advantage of each turn of each trajectory of one group.
//
// kTurnReturn: scale * G_k, G_k = r_k + gamma G_{k+1}, and the baseline is subtracted from the last
// reward. With gamma = 1 the first turn has the trajectory's advantage; with a reward at the end
// alone a turn has gamma^(turns behind it) of it.
//
// kGigpo: advantage + weight * (G_k - mean) [/ (std + std_eps) with `by_std`], over all turns of
// the group with this anchor; n - 1. A turn without a partner, or one whose partners' returns all
// equal its own, has 0 there.
//
// kTurningPoint: V_k, the mean reward of the trajectories that met the state in front of turn k (in
// front of the first: of the group; behind the last: the trajectory's own), are the prefix values
// of turning_point_rewards(), which normalise_by_turn() then scales.
std::vector<std::vector<double>> turn_credit(const CreditOptions& options, bool by_std,
                                             double std_eps, std::span<const TurnFacts> group);

// G_k = r_k + gamma G_{k+1}.
std::vector<double> discounted_returns(std::span<const double> rewards, double gamma);

// values [turns + 1]: of what is expected in front of each turn, and the outcome. Increments
// d_t = R_t - R_{t-1}; where an increment against the sign of R_T - R_0 is followed by one with it,
// that turn is a turning point and has all that followed: R_T - R_{t-1}.
std::vector<double> turning_point_rewards(std::span<const double> values);

// (r - mean) / (std + 1e-4) in place, deviations by n: turn by turn over the trajectories where all
// have as many turns, else over all turns of the group. 0 where all are equal.
void normalise_by_turn(std::vector<std::vector<double>>& group);

}  // namespace tailrace
