#include "scheduler/service/progress_watch.h"

#include <chrono>
#include <utility>

namespace tailrace::scheduler {
namespace {

// Heartbeats come about twice as often as that makes a difference; the service turns far more
// often.
constexpr Time kInterval = std::chrono::milliseconds(200);

// It samples what is leased to it, or installs weights: others wait for it (law 6.6, 8.6).
bool should_move(const Worker& worker) {
  return is_asked(worker) || (worker.version >= 0 && worker.leased > 0);
}

}  // namespace

ProgressWatch::ProgressWatch(Time patience, Progress progress)
    : patience_(patience), progress_(std::move(progress)) {}

std::vector<Stalled> ProgressWatch::look(const State& state, Time now) {
  std::vector<Stalled> changes;
  if (patience_ <= Time{} || now - looked_ < kInterval) return changes;
  using std::chrono::milliseconds;
  const auto elapsed = std::chrono::duration_cast<milliseconds>(now - std::exchange(looked_, now));
  const StallWatch fresh(std::chrono::duration_cast<milliseconds>(patience_));
  // Names of workers come and go during a run; without this the map would grow with each of them.
  std::erase_if(watched_, [&](const auto& entry) { return !state.workers.contains(entry.first); });
  for (const auto& [id, worker] : state.workers) {
    // A worker that is silent for long is away, which is another matter (law 8.1).
    if (worker.role != Role::kRollout || !worker.connected) continue;
    const auto progress = progress_(id, worker.session);
    if (!progress) continue;
    auto [it, is_new] = watched_.try_emplace(id, Watched{worker.session, fresh});
    Watched& watched = it->second;
    if (watched.session != worker.session) watched = {worker.session, fresh};
    // Its earlier work may be elsewhere by now: only the number shows that it moves. One without
    // work is not missed; its time begins with the work.
    if (!watched.stalled && !should_move(worker)) {
      watched.watch = fresh;
      (void)watched.watch.look(*progress, milliseconds(0));
      continue;
    }
    const bool stands = watched.watch.look(*progress, elapsed);
    if (stands == watched.stalled) continue;
    watched.stalled = stands;
    changes.push_back({.worker = id, .session = worker.session, .stalled = stands});
  }
  return changes;
}

}  // namespace tailrace::scheduler
