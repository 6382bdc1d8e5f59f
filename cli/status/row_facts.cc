#include "cli/status/row_facts.h"

#include <algorithm>

#include "cli/view/progress.h"
#include "core/run/stage_row.h"

namespace tailrace {
namespace {

// Enough for the pace of the last twenty steps, with evaluations in between.
constexpr size_t kRowsOfPace = 100;

}  // namespace

RowFacts::RowFacts(const std::string& config) : health_(health_of({}, config)) {}

void RowFacts::add(const MetricsRow& row) {
  health_.add(row);
  for (const auto& [name, value] : row.values) newest_[name] = value;
  last_.push_back(row);
  if (last_.size() > kRowsOfPace) last_.pop_front();
  if (row.find("time/step") != nullptr) last_step_ = row.step;
  if (const std::optional<StageRow> update = stage_row(row); update && update->updates > 0) {
    // The newest stage is the one that a person asks about.
    if (!updates_ || updates_->stage != update->stage) updates_ = Updates{.stage = update->stage};
    updates_->kind = update->kind;
    updates_->of = update->updates;
    updates_->done = std::max(updates_->done, row.step);
  }
}

std::optional<double> RowFacts::seconds_left(int64_t steps) const {
  const double left = tailrace::seconds_left(
      {.name = "", .total_steps = steps, .rows = {last_.begin(), last_.end()}});
  return left < 0 ? std::nullopt : std::optional(left);
}

}  // namespace tailrace
