// The trainings on rows of a run, whichever way its config names them: the list `stages`, or the
// sections `sft`, `reward_model`, `preference` and `distill`, which follow each other in this
// order.
//
//   stages:
//     - sft: {data: chats.jsonl}
//       until: 2 epochs
//     - reward_model: {data: pairs.jsonl}
//     - preference: {data: pairs.jsonl, loss: ipo}
//       until: 200 updates
//     - distill: {data: chats.jsonl, policy: teacher}
//     - rl: {}
//       until: 100 steps
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/options.h"
#include "trainer/stage.h"

namespace tailrace {

struct RunStage : RowStage {
  std::string item;  // as a person has written it: "sft", "stages[1].preference"

  // The full name of one of its keys: "stages[1].preference.data".
  std::string key(std::string_view key) const;
  bool has_demonstrations() const;
};

// In their order, with what `until` says. Only what stages are needs to be valid. For resolve(),
// and for rules of options that are not yet known to be valid; all others have ResolvedRun::stages.
std::vector<RunStage> stages_of(const RunOptions& options);

// The steps that `until` of the stage of reinforcement learning says; nothing: it says none, or
// there is no such stage.
std::optional<int64_t> steps_of_stages(const RunOptions& options);

// Makes the stage of reinforcement learning, which says a number of steps, say this one.
void set_steps_of_stages(RunOptions& options, int64_t steps);

// Whether it trains on the rows of a file, somewhere.
bool has_row_files(const RunOptions& options);

// Throws UserError about the list: an item of no kind or of several, an order that there is not, an
// end that is no number of what ends it. `has_environment`: the run samples.
void validate_stages(const RunOptions& options, bool has_environment);

}  // namespace tailrace
