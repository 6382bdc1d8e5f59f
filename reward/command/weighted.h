// Several rewards as one: the sum of each times its weight. What none of them can decide is not
// decided: a part without a verdict leaves the sum without one. Programs are asked at the same
// time.
//
// Metrics: reward_NAME for each part, before its weight, and its own metrics as NAME_METRIC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reward/registry.h"
#include "reward/verifier.h"

namespace tailrace {

struct WeightedPart {
  std::string name;
  double weight = 1;
  std::shared_ptr<const Verifier> verifier;
  bool is_retold = false;  // it scores the episode as it was retold (retold.h), and else the
                           // evidence of the environment
};

// At least one part.
std::unique_ptr<Verifier> make_weighted_verifier(std::vector<WeightedPart> parts);

}  // namespace tailrace
