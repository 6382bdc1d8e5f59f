// Which rollout workers stand still: they hold work, or are to install weights, and compute nothing
// (law 8.6).
//
// A worker says how it gets on with each heartbeat (wire::Heartbeat::progress); here only whether
// the number is another one than before is looked at. decide() hears of the two changes, and not of
// each heartbeat: the journal would be full of them.
//
// Thread: the service's only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "core/base/time.h"
#include "core/run/stall_watch.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

class ProgressWatch {
 public:
  // The latest progress of a worker's open session; nothing: it has said nothing.
  using Progress = std::function<std::optional<uint64_t>(const WorkerId&, uint64_t session)>;

  // `patience`: without progress; 0: for ever. One that waits for its environments makes progress.
  ProgressWatch(Time patience, Progress progress);

  // Called after what has come was taken, as often as one likes: who stands still now, and who
  // moves again. While the caller itself was away nobody stood still.
  std::vector<Stalled> look(const State& state, Time now);

 private:
  struct Watched {
    uint64_t session = 0;
    StallWatch watch;
    bool stalled = false;  // and that was told
  };

  Time patience_;
  Progress progress_;
  Time looked_{};
  std::map<WorkerId, Watched> watched_;
};

}  // namespace tailrace::scheduler
