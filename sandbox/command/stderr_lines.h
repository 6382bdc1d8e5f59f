// What a program writes to its stderr, for the log of the process that asks it: whole lines behind
// the name of the program, none too long and not too many, and the last ones for a message.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/rate_limit.h"
#include "core/base/time.h"

namespace tailrace::sandbox {

class StderrLines {
 public:
  // `limit`: of the log, shared by all processes of the program; it outlives this. Null: the last
  // lines are kept, and nothing else becomes of any.
  StderrLines(std::string program, RateLimit* limit)
      : program_(std::move(program)), limit_(limit) {}

  // So many lines at once, and from then on one in each period.
  static RateLimit log_limit();

  void take(std::string_view bytes, Time now);
  // Nothing more comes.
  void end(Time now);
  // The last lines, joined by " | ", as far as a message has room; empty: there are none.
  std::string last() const;

 private:
  void finish_line(Time now);

  void log(const std::string& text) const;

  std::string program_, line_;
  std::deque<std::string> last_;
  RateLimit* limit_;
  int64_t num_unsaid_ = 0;
};

}  // namespace tailrace::sandbox
