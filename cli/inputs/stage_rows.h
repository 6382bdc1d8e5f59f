// The rows of a stage's files, read once and written as the trainer reads them: supervised rows
// (sft_rows.h) or preferences (preference_rows.h).
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/config/stages.h"
#include "cli/inputs/long_rows.h"
#include "cli/inputs/sft_rows.h"

namespace tailrace {

// A file of rows. Empty: there is none, or it was not read.
struct StageFile {
  std::string lines = {};        // as the trainer reads them
  int64_t rows = 0, tokens = 0;  // each with something to learn
  int64_t dropped = 0, cut = 0;  // rows that were too long, or taught nothing; that lost their end
  std::vector<LongRow> too_long = {};  // of both, the former
  int64_t nulls = 0;                   // keys that were null and are left out
  int64_t batches = 0;                 // updates of an epoch, about
  int64_t pass_tokens = 0;             // that a pass must hold for the longest pair
};

struct StageFiles {
  StageFile data = {}, eval_data = {};
};

// Both files of a stage that has them. Throws UserError as read_supervised() and read_preferences()
// do, and for a pair that train.microbatch_tokens does not hold.
StageFile read_stage_file(const RunStage& stage, bool held_out, const SftReading& reading,
                          int64_t microbatch_tokens);

// "3 rows, 90 tokens, 1 more row dropped".
std::string describe(const StageFile& file);

}  // namespace tailrace
