// A training on rows as a stage of a run: supervised, on preferences, of a reward model, or from a
// teacher. Stages follow each other before the first step; each but one of a reward model begins
// with the weights that the one before it left.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/options.h"

namespace tailrace {

struct RowStage {
  std::string name;  // of its files, and in the journal: "sft", "preference_2"
  std::variant<SftOptions, PreferenceOptions, RewardModelOptions, DistillStageOptions> work = {};

  RowOptions& rows() {
    return std::visit([](auto& options) -> RowOptions& { return options; }, work);
  }
  const RowOptions& rows() const {
    return std::visit([](const auto& options) -> const RowOptions& { return options; }, work);
  }
  bool trains_policy() const { return !std::holds_alternative<RewardModelOptions>(work); }
  // What its metrics and its files begin with: "sft", "preference", "reward_model",
  // "distill".
  std::string_view kind() const {
    constexpr std::string_view kKinds[] = {"sft", "preference", "reward_model", "distill"};
    return kKinds[work.index()];
  }
};

}  // namespace tailrace
