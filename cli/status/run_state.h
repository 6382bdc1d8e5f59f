// Where a run stands by its journal, for commands that only read it, of a living run too.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/run/run_directory.h"
#include "scheduler/state/state.h"

namespace tailrace {

struct RunState {
  std::optional<scheduler::State> state;  // nothing: the run has no journal
  // The damage of the journal: a sentence that names the file and the place. The state is the
  // one before the damage. Empty: it is whole.
  std::string damage;
};

// Throws UserError when the journal cannot be read at all.
RunState read_run_state(const RunPaths& paths);

// For a command that shows other files of the run, which may know more than the journal: adds what
// a person must know of a journal that is damaged, or why it cannot be read.
void add_note_of_journal(const RunPaths& paths, std::vector<std::string>& notes);

}  // namespace tailrace
