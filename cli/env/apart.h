// Work in a process of its own: code of somebody else may crash, hang or leak there, and whoever
// asked hears of it.
//
// Thread: the only one of the process, because the child has no other threads.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"

namespace tailrace {

// The present work, for the message about a crash. The last note counts.
using Note = std::function<void(const std::string&)>;

// The text that `work` gives back. A Failure: it threw, the process ended (with the signal and the
// last note), or it took longer than `limit`, or was without a note for `quiet`, and was killed. A
// UserError of the work is thrown here. What the work writes to standard output goes to standard
// error.
Result<std::string> run_apart(const std::function<std::string(const Note&)>& work, Time limit,
                              Time quiet = std::chrono::hours(1));

}  // namespace tailrace
