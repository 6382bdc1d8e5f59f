#include "scheduler/state/config.h"

#include <algorithm>

#include "core/base/error.h"

namespace tailrace::scheduler {

int64_t Config::prompts_per_step() const {
  int64_t sum = 0;
  for (const DatasetConfig& dataset : datasets) sum += dataset.prompts_per_step;
  return sum;
}

const std::string& Config::pool_of(Lane lane, int32_t dataset) const {
  if (lane == Lane::kEval && !eval.pool.empty()) return eval.pool;
  return datasets[static_cast<size_t>(dataset)].pool;
}

bool Config::binds(const std::string& pool) const {
  if (pool.empty()) return false;
  return (eval.prompts > 0 && eval.pool == pool) ||
         std::ranges::find(datasets, pool, &DatasetConfig::pool) != datasets.end();
}

bool Config::evaluates(int64_t version) const {
  return eval.prompts > 0 &&
         (version == 0 || (eval.interval_steps > 0 && version % eval.interval_steps == 0));
}

// Law 3.5: an advantage compares the members of a group, so one reward alone says nothing, unless
// groups have one member.
int64_t Config::members_needed() const { return std::min<int64_t>(2, group_size); }

void Config::validate() const {
  // A run without datasets takes no step: its data has ended when it begins (law 11.2).
  const bool takes_steps = !datasets.empty() || steps > 0;
  if (takes_steps && prompts_per_step() < 1) {
    throw UserError::at("rollout.prompts_per_step", "is {}; a step needs at least one prompt",
                        prompts_per_step());
  }
  if (group_size < 1)
    throw UserError::at("rollout.group_size", "is {}; it must be at least 1", group_size);
  if (keep_weights < 1)
    throw UserError::at("weights.keep", "is {}; it must be at least 1", keep_weights);
  // A config that would stand still or never end is refused here, before allocation (law 5.3).
  if (replace_zero_signal && group_size < 2) {
    throw UserError::at(
        "scheduler.replace_zero_signal",
        "is true with rollout.group_size = 1, which would filter every group: one reward always "
        "equals itself.\n       Try rollout.group_size=8, or scheduler.replace_zero_signal=false.");
  }
  if (max_gen_batches < 0)
    throw UserError::at("scheduler.max_gen_batches", "is {}; it cannot be negative",
                        max_gen_batches);
  mode.validate();
  bool data_ends = true, could_end = true;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const DatasetConfig& dataset = datasets[i];
    if (dataset.prompts_per_step < 0 || dataset.prompts_per_epoch < 0 || dataset.epochs < 0) {
      throw UserError(
          "dataset {}: prompts_per_step, prompts_per_epoch and epochs cannot be negative", i);
    }
    // A dataset without a share takes no part (law 3.7): it can neither end a run nor keep it
    // going.
    if (dataset.prompts_per_step == 0) continue;
    could_end = could_end && dataset.prompts_per_epoch > 0;
    data_ends = data_ends && dataset.prompts_per_epoch > 0 && dataset.epochs > 0;
  }
  if (steps == 0 && !data_ends) {
    throw UserError::at(
        "run.steps",
        "is 0 and the data has no end; the run would never end.\n       Try run.steps=100{}.",
        could_end ? ", or run.epochs=1" : "");
  }
}

}  // namespace tailrace::scheduler
