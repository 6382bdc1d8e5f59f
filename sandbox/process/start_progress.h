// Lines of the log while somebody waits for programs to start: "3 of 8 processes have started", the
// first when a start has been waited for during ten seconds, then one in half a minute, and one
// when all have started. Fast starts have none. A launch shows them to a person (kHaveStarted).
//
// Thread: caller locks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/time.h"

namespace tailrace::sandbox {

class StartProgress {
 public:
  // What is to be said now, if anything. `since`: when the oldest start that is not over was asked
  // for; Time::max(): all are.
  std::optional<std::string> look(Time now, Time since, int64_t num_started, int64_t num_wanted);
  // When there may be something to say, if nothing changes until then.
  Time next(Time since) const;

 private:
  std::optional<Time> told_;  // the last line of this wait
};

}  // namespace tailrace::sandbox
