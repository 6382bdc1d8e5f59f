#include "reward/judge.h"

#include <exception>

#include <fmt/format.h>

#include "core/base/join_texts.h"

namespace tailrace {

std::string no_reward(double value) {
  return fmt::format("its reward is {:g}, which is no finite number of at most {:g} in size", value,
                     kLargestReward);
}

Result<Score> judge(const VerifierRegistry& verifiers, const std::string& name,
                    const std::string& evidence, Time budget) {
  const Verifier* verifier = verifiers.find(name);
  if (verifier == nullptr) {
    std::vector<std::string> names;
    for (const auto& [known, help] : verifiers.list()) names.push_back(known);
    return Failure{
        fmt::format("there is no verifier '{}'; verifiers: {}", name, join_texts(names, ", "))};
  }
  Result<Score> score = Failure{"not scored"};
  // A verifier may come from a plugin: what it throws is its failure, not ours.
  try {
    score = verifier->score(evidence, budget);
  } catch (const std::exception& e) {
    score = Failure{e.what()};
  }
  if (!score)
    return Failure{.message = fmt::format("verifier {}: {}", name, score.failure().message),
                   .is_final = score.failure().is_final};
  // One NaN would spoil the advantages of its whole group.
  if (const double reward = score.value().reward; !is_reward(reward))
    return Failure{fmt::format("verifier {}: {}", name, no_reward(reward))};
  return score;
}

}  // namespace tailrace
