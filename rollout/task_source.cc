#include "rollout/task_source.h"

#include <utility>

namespace tailrace {

TaskSource::TaskSource(uint64_t seed, std::vector<DatasetRow> rows,
                       std::vector<DatasetRow> held_out_rows)
    : seed_(seed), rows_(std::move(rows)), held_out_rows_(std::move(held_out_rows)) {}

Task TaskSource::task(Lane lane, const MemberId& member) const {
  const bool held_out = lane == Lane::kEval;
  const std::vector<DatasetRow>& rows =
      held_out && !held_out_rows_.empty() ? held_out_rows_ : rows_;
  Task task{.seed = task_seed(seed_, held_out, member.prompt)};
  if (!rows.empty()) task.data = rows[static_cast<size_t>(member.prompt) % rows.size()].json;
  return task;
}

}  // namespace tailrace
