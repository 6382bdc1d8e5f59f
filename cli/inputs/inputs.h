// Files that a run reads and does not write again: its data, its tokenizer, the shape of
// its model. RUN/inputs.json keeps the digest of each, so that a run that goes on reads what it
// began with.
//
// Thread: any.
#pragma once

#include "cli/inputs/resolved_run.h"
#include "core/run/run_directory.h"

namespace tailrace {

// Notes each file that is not noted yet. Throws UserError about its key, for one that has changed
// since it was noted, and for a run that has begun and whose notes are gone.
void prove_inputs(const RunPaths& paths, const ResolvedRun& run);

// The same of what lies in RUN/prompts alone, and notes nothing: before anybody reads these files,
// so that one that was edited is not told for what is in it now.
void prove_prompts(const RunPaths& paths, const ResolvedRun& run);

}  // namespace tailrace
