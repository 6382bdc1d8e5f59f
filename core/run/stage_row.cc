#include "core/run/stage_row.h"

#include <fmt/format.h>

namespace tailrace {
namespace {

const double* first_of(const MetricsRow& row, std::initializer_list<std::string> names) {
  for (const std::string& name : names)
    if (const double* value = row.find(name)) return value;
  return nullptr;
}

}  // namespace

std::string_view words_of_stage(std::string_view kind) {
  if (kind == "sft") return "supervised";
  if (kind == "distill") return "distillation";
  return kind == "reward_model" ? "reward model" : kind;
}

std::string updates_metric(std::string_view kind) { return fmt::format("{}/updates", kind); }

std::optional<StageRow> stage_row(const MetricsRow& row) {
  if (row.version >= 0) return std::nullopt;
  for (const std::string_view kind : kRowStages) {
    const auto own = [&](std::string_view name) { return fmt::format("{}/{}", kind, name); };
    const double* updates = row.find(updates_metric(kind));
    StageRow found{.kind = kind,
                   .loss = row.find(own("loss")),
                   .eval_loss = row.find(own("eval_loss")),
                   .accuracy = first_of(row, {own("accuracy"), "rewards/accuracies"}),
                   .eval_accuracy = first_of(row, {own("eval_token_accuracy"), own("eval_accuracy"),
                                                   "eval_rewards/accuracies"})};
    if (updates == nullptr && found.loss == nullptr && found.eval_loss == nullptr) continue;
    if (updates != nullptr) found.updates = static_cast<int64_t>(*updates);
    if (const double* stage = row.find(kStageNumber)) found.stage = static_cast<int64_t>(*stage);
    return found;
  }
  return std::nullopt;
}

}  // namespace tailrace
