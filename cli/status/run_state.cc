#include "cli/status/run_state.h"

#include <fmt/format.h>

#include "cli/roles/endpoint.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "scheduler/store/journal.h"

namespace tailrace {
namespace {

// The scheduler writes while this reads: a pair of files may have gone meanwhile and another one
// have come, and a record may be half written. Damage is there at the next look, too.
constexpr int kLooks = 5;

Result<scheduler::Restored> look(const RunPaths& paths) {
  auto restored = scheduler::restore(paths.journal());
  for (int i = 1; i < kLooks && is_running(paths.root); ++i) {
    if (restored && restored.value().lost.empty()) break;
    restored = scheduler::restore(paths.journal());
  }
  return restored;
}

}  // namespace

RunState read_run_state(const RunPaths& paths) {
  // Before the journal: a living run goes on, and its next checkpoint would seem to be beyond it.
  const auto checkpoint = newest_checkpoint(paths);
  auto restored = look(paths);
  if (!restored) throw UserError("{}", restored.failure().message);
  RunState found{.state = std::move(restored.value().state), .damage = {}};
  if (!found.state) return found;
  std::vector<std::string> reasons = std::move(restored.value().lost);
  for (const auto& [id, policy] : found.state->policies) {
    if (!checkpoint || !is_beyond(policy, *checkpoint)) continue;
    reasons.push_back(fmt::format("its events end at version {}, and there is the checkpoint {}",
                                  policy.published, checkpoint_name(*checkpoint)));
  }
  if (!reasons.empty())
    found.damage = fmt::format("the journal {} is damaged: {}", paths.journal().string(),
                               join_texts(reasons, "; "));
  return found;
}

void add_note_of_journal(const RunPaths& paths, std::vector<std::string>& notes) {
  if (std::filesystem::exists(paths.simulation())) return;  // it has none
  try {
    const RunState found = read_run_state(paths);
    if (!found.state)
      return notes.push_back(fmt::format(
          "{} is missing or empty: where the run stands is not known", paths.journal().string()));
    if (found.damage.empty()) return;
    notes.push_back(fmt::format(
        "{}. The run stands where it stood before the damage, at version {}; what other files tell "
        "of a later time is shown all the same",
        found.damage, found.state->policies.begin()->second.published));
  } catch (const UserError& error) {
    notes.push_back(fmt::format("where the run stands is not known: {}", error.what()));
  }
}

}  // namespace tailrace
