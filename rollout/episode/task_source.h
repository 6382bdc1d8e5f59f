// A member's task and key: pure functions of the run's seed, its datasets, lane and id, so that
// an episode that is tried again, or evaluated again by somebody else, is the same episode.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "core/generate.h"
#include "core/text/dataset.h"
#include "sandbox/environment.h"

namespace tailrace {

class TaskSource {
 public:
  // `rows` and, for evaluation, `held_out_rows` (empty: the same) are empty for an environment that
  // draws its own tasks.
  explicit TaskSource(uint64_t seed, std::vector<text::DatasetRow> rows = {},
                      std::vector<text::DatasetRow> held_out_rows = {});

  // A dataset begins again after its last row.
  sandbox::Task task(Lane lane, const MemberId& member) const;

 private:
  uint64_t seed_;
  std::vector<text::DatasetRow> rows_, held_out_rows_;
};

// The key of a member: attempts share it, launches and epochs do not. Evaluation has its own
// numbers, the same ones for every version, so that versions differ by their weights alone and
// anybody can repeat an evaluation.
SampleKey member_key(uint64_t run_seed, Lane lane, MemberId member);

// Of a segment of the episode: positions count anew in each, and the first one has the member's
// own.
SampleKey segment_key(SampleKey member, size_t segment);

}  // namespace tailrace
