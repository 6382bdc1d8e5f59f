#include "rollout/episode/task_source.h"

#include <iterator>
#include <utility>

#include "core/base/random.h"

namespace tailrace {

TaskSource::TaskSource(uint64_t seed, std::vector<text::DatasetRow> rows,
                       std::vector<text::DatasetRow> held_out_rows)
    : seed_(seed), rows_(std::move(rows)), held_out_rows_(std::move(held_out_rows)) {}

sandbox::Task TaskSource::task(Lane lane, const MemberId& member) const {
  const bool held_out = lane == Lane::kEval;
  const std::vector<text::DatasetRow>& rows =
      held_out && !held_out_rows_.empty() ? held_out_rows_ : rows_;
  sandbox::Task task{.seed = sandbox::task_seed(seed_, held_out, member.prompt, member.dataset)};
  if (!rows.empty())
    task.data = rows[static_cast<size_t>(row_of(member.prompt, std::ssize(rows)))].json;
  return task;
}

SampleKey member_key(uint64_t run_seed, Lane lane, MemberId member) {
  // Evaluations of all versions draw the same numbers, so that their scores differ by the policy
  // alone, and a sample whose body was lost comes again as it was (law 10.1).
  if (lane == Lane::kEval) member.epoch = member.launch = 0;
  return {mix({run_seed, static_cast<uint64_t>(lane), static_cast<uint64_t>(member.policy),
               static_cast<uint64_t>(member.dataset), static_cast<uint64_t>(member.prompt),
               static_cast<uint64_t>(member.epoch), static_cast<uint64_t>(member.launch),
               static_cast<uint64_t>(member.member)})};
}

SampleKey segment_key(SampleKey member, size_t segment) {
  return segment == 0 ? member : SampleKey{mix({member.value, segment})};
}

}  // namespace tailrace
