#include "trainer/loss/credit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/group_signal.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr double kTurnStdEps = 1e-4;  // of the paper's code

// 0 where the two are equal but for their rounding.
int trend_of(double from, double to) { return same_reward(from, to) ? 0 : to > from ? 1 : -1; }

std::vector<double> turn_returns(const TurnFacts& t, double gamma) {
  std::vector<double> rewards(t.rewards.begin(), t.rewards.end());
  // The baseline is of the whole trajectory, so it is taken off where the outcome is.
  rewards.back() -= t.baseline;
  std::vector<double> returns = discounted_returns(rewards, gamma);
  for (double& value : returns) value *= t.scale;
  return returns;
}

bool all_equal(std::span<const double> values) {
  const auto [low, high] = std::ranges::minmax(values);
  return are_equal_rewards(low, high);
}

std::vector<std::vector<double>> gigpo_credit(const CreditOptions& options, bool by_std,
                                              double std_eps, std::span<const TurnFacts> group) {
  std::vector<std::vector<double>> returns;
  std::map<uint64_t, std::vector<double>> by_anchor;
  for (const TurnFacts& t : group) {
    returns.push_back(discounted_returns(t.rewards, options.gamma));
    // An anchor of 0 is a state that the environment gave no name.
    for (size_t k = 0; k < t.anchors.size(); ++k)
      if (t.anchors[k] != 0) by_anchor[t.anchors[k]].push_back(returns.back()[k]);
  }
  std::vector<std::vector<double>> credit;
  for (size_t i = 0; i < group.size(); ++i) {
    const TurnFacts& t = group[i];
    credit.emplace_back(t.rewards.size(), t.advantage);
    for (size_t k = 0; k < t.anchors.size(); ++k) {
      if (t.anchors[k] == 0) continue;
      const std::vector<double>& met = by_anchor[t.anchors[k]];
      // A state that one turn alone met says nothing: its mean is that turn's return.
      if (all_equal(met)) continue;
      const auto [mean, std] = mean_std(met);
      const double scale = by_std ? 1 / (std + std_eps) : 1;
      credit.back()[k] += options.weight * (returns[i][k] - mean) * scale;
    }
  }
  return credit;
}

// `size`: of the values whose increments they are.
void normalise(std::vector<std::vector<double>>& group, double size) {
  const auto scale = [size](std::span<double* const> values) {
    const auto n = static_cast<double>(values.size());
    const auto [low, high] = std::ranges::minmax(values, {}, [](const double* v) { return *v; });
    const bool equal = are_equal_rewards(*low, *high, size);
    double mean = 0, squares = 0;
    for (const double* value : values) mean += *value / n;
    for (const double* value : values) squares += (*value - mean) * (*value - mean);
    const double std = std::sqrt(squares / n);
    for (double* value : values) *value = equal ? 0 : (*value - mean) / (std + kTurnStdEps);
  };
  // Turns are compared with the same turn of the others where all have as many; else with all turns
  // of the group.
  const bool aligned = std::ranges::all_of(
      group, [&](const auto& turns) { return turns.size() == group.front().size(); });
  std::vector<std::vector<double*>> columns(aligned && !group.empty() ? group.front().size() : 1);
  for (auto& turns : group)
    for (size_t k = 0; k < turns.size(); ++k) columns[aligned ? k : 0].push_back(&turns[k]);
  for (const auto& column : columns)
    if (!column.empty()) scale(column);
}

double total(const TurnFacts& t) {
  double sum = 0;
  for (double reward : t.rewards) sum += reward;
  return sum;
}

std::vector<std::vector<double>> turning_point_credit(std::span<const TurnFacts> group) {
  std::map<uint64_t, std::pair<double, int64_t>> outcomes;  // of a state: sum, trajectories
  double all = 0;
  for (const TurnFacts& t : group) {
    all += total(t);
    // Once a trajectory, however often it comes by.
    for (uint64_t anchor : std::set<uint64_t>(t.anchors.begin(), t.anchors.end())) {
      auto& [sum, count] = outcomes[anchor];
      sum += total(t);
      ++count;
    }
  }
  std::vector<std::vector<double>> credit;
  double size = 1;
  for (const TurnFacts& t : group) {
    std::vector<double> values = {all / static_cast<double>(group.size())};
    for (size_t k = 1; k < t.rewards.size(); ++k) {
      const bool known = k < t.anchors.size() && t.anchors[k] != 0;
      // Nobody else was there: what came of it is what is known of it.
      const auto [sum, count] = known ? outcomes[t.anchors[k]] : std::pair(total(t), int64_t{1});
      values.push_back(sum / static_cast<double>(count));
    }
    values.push_back(total(t));
    for (double value : values) size = std::max(size, std::abs(value));
    credit.push_back(turning_point_rewards(values));
  }
  normalise(credit, size);
  return credit;
}

}  // namespace

ReturnKind return_kind(AdvantageKind advantage, CreditKind credit) {
  const bool whole = credit == CreditKind::kTrajectory;
  switch (advantage) {
    case AdvantageKind::kGae:
      return ReturnKind::kGae;
    case AdvantageKind::kReward:
      return whole ? ReturnKind::kToGo : ReturnKind::kStand;
    case AdvantageKind::kGroupMean:
      return whole ? ReturnKind::kCentred : ReturnKind::kStand;
    case AdvantageKind::kLeaveOneOut:
      return whole ? ReturnKind::kLeaveOneOut : ReturnKind::kStand;
    default:
      // Divided by a deviation of rewards, which a penalty is no part of.
      return ReturnKind::kStand;
  }
}

std::vector<double> discounted_returns(std::span<const double> rewards, double gamma) {
  std::vector<double> returns(rewards.begin(), rewards.end());
  for (size_t k = returns.size(); k-- > 1;) returns[k - 1] += gamma * returns[k];
  return returns;
}

std::vector<double> turning_point_rewards(std::span<const double> values) {
  TR_CHECK(values.size() >= 2, "{} values", values.size());
  const int whole = trend_of(values.front(), values.back());
  std::vector<double> rewards;
  int before = 0;
  for (size_t t = 1; t < values.size(); ++t) {
    const double increment = values[t] - values[t - 1];
    const int trend = trend_of(values[t - 1], values[t]) * whole;
    // A turning point: the trend of this turn goes the way of the whole, and that of the turn
    // before went against it. Such a turn gets all that came behind it, and not its own step alone.
    const bool turns = before < 0 && trend > 0;
    rewards.push_back(turns ? values.back() - values[t - 1] : increment);
    before = trend;
  }
  return rewards;
}

void normalise_by_turn(std::vector<std::vector<double>>& group) { normalise(group, /*size=*/1); }

std::vector<std::vector<double>> turn_credit(const CreditOptions& options, bool by_std,
                                             double std_eps, std::span<const TurnFacts> group) {
  for (const TurnFacts& t : group) {
    TR_CHECK(!t.rewards.empty());
    TR_CHECK(t.anchors.empty() || t.anchors.size() == t.rewards.size(), "{} anchors of {} turns",
             t.anchors.size(), t.rewards.size());
  }
  switch (options.kind) {
    case CreditKind::kTrajectory:
      break;
    case CreditKind::kTurnReturn: {
      std::vector<std::vector<double>> credit;
      for (const TurnFacts& t : group) credit.push_back(turn_returns(t, options.gamma));
      return credit;
    }
    case CreditKind::kGigpo:
      return gigpo_credit(options, by_std, std_eps, group);
    case CreditKind::kTurningPoint:
      return turning_point_credit(group);
  }
  std::vector<std::vector<double>> credit;
  for (const TurnFacts& t : group) credit.emplace_back(t.rewards.size(), t.advantage);
  return credit;
}

void CreditOptions::visit(OptionVisitor& v) {
  const auto idle = [&](bool reads, std::string_view lacks) {
    return idle_if(!reads, fmt::format("{{kind}} is {}, which has no {}", name_of(kind), lacks),
                   {"kind"});
  };
  v.field("kind", kind,
          {.help = "what of a trajectory's advantage its turns get. trajectory: all the same; "
                   "turn_return: the return from the turn on; gigpo: and how it did among all "
                   "members that met its state; turning_point: what it changed of the expected "
                   "outcome"});
  v.field(
      "gamma", gamma,
      {.help = "discount a turn (turn_return, gigpo)",
       .min = 0,
       .max = 1,
       .idle = idle(kind == CreditKind::kTurnReturn || kind == CreditKind::kGigpo, "discount")});
  v.field("weight", weight,
          {.help = "of the comparison of states (gigpo)",
           .min = 0,
           .max = 1000,
           .idle = idle(kind == CreditKind::kGigpo, "second part")});
}

}  // namespace tailrace
