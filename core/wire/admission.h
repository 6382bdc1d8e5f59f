// Who may begin a session. A name belongs to the process that said Hello last, and one that it took
// the place of must not come back. What is remembered for that, and how often sessions begin (each
// is a journal entry and a line of the log), is bounded, however many names and processes come.
//
// It opens no socket and reads no clock, so that floods can be tried on it in a loop.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "core/base/rate_limit.h"
#include "core/base/time.h"

namespace tailrace::wire {

// Far more than a machine runs. One name more is heard when another has gone.
inline constexpr int64_t kMaxWorkers = 1024;

class Admission {
 public:
  // `pace`: of new sessions of one name, and of new names, after a first lot of them.
  explicit Admission(Time pace);

  enum class Answer {
    kBegin,     // a new session; one that was open ends with it
    kAgain,     // the open session is meant: its Welcome was lost, or is on its way
    kOld,       // a Hello that came late
    kReplaced,  // another process has the name since
    kRefused,   // too many: it may ask again later
  };
  // A Hello: `attempt` counts those sessions that this process (`incarnation`) has asked for.
  Answer ask(const std::string& worker, uint64_t incarnation, uint64_t attempt, Time now);
  // Its session has ended and none took its place.
  void on_end(const std::string& worker);

  int64_t num_names() const { return static_cast<int64_t>(names_.size()); }

 private:
  struct Name {
    uint64_t incarnation = 0;  // that has it; 0: none yet
    uint64_t attempt = 0;
    std::deque<uint64_t> replaced = {};  // the last that had it before
    bool open = false;
    uint64_t ended = 0;  // when its session did, in the order of such ends
    RateLimit sessions;
  };
  bool make_room();

  Time pace_;
  RateLimit new_names_;
  std::map<std::string, Name> names_;
  uint64_t num_ends_ = 0;
};

}  // namespace tailrace::wire
