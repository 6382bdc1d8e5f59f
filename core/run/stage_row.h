// Rows of metrics.jsonl that tell of a training on rows, before the first step: a stage of a run.
//
// Their step counts the updates of the stage. Names begin with its kind: "preference/loss". The
// value `stage` says which stage it is, from 1; a row without it is of the first.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/run/metrics.h"

namespace tailrace {

// Kinds, as their metrics begin.
inline constexpr std::string_view kRowStages[] = {"sft", "preference", "reward_model", "distill"};

inline constexpr std::string_view kStageNumber = "stage";

struct StageRow {
  int64_t stage = 1;
  std::string_view kind;    // one of kRowStages
  int64_t updates = 0;      // of the whole stage; 0: not said
  const double* loss;       // null: it tells of held-out rows alone
  const double* eval_loss;  // null: it tells of an update alone
  const double* accuracy;   // of its pairs, by their rewards; null: it has none
  const double* eval_accuracy;
};

// Nothing: the row is of a step or an evaluation. Borrows the row.
std::optional<StageRow> stage_row(const MetricsRow& row);

// How a person is told of its updates: "supervised", "preference", "reward model",
// "distillation".
std::string_view words_of_stage(std::string_view kind);

// "KIND/updates".
std::string updates_metric(std::string_view kind);

}  // namespace tailrace
