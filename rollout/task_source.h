// What a member plays: a pure function of the run's seed, its datasets and its lane and id, so that
// an episode that is tried again, or evaluated again by somebody else, is the same episode.
#pragma once

#include <cstdint>
#include <vector>

#include "core/text/dataset.h"
#include "core/trajectory/trajectory.h"
#include "sandbox/environment.h"

namespace tailrace {

class TaskSource {
 public:
  // `rows` and, for evaluation, `held_out_rows` (empty: the same) are empty for an environment that
  // draws its own tasks.
  explicit TaskSource(uint64_t seed, std::vector<DatasetRow> rows = {},
                      std::vector<DatasetRow> held_out_rows = {});

  // A dataset begins again after its last row.
  Task task(Lane lane, const MemberId& member) const;

 private:
  uint64_t seed_;
  std::vector<DatasetRow> rows_, held_out_rows_;
};

}  // namespace tailrace
