// The stderr of a program, for the log of the process that asks it: whole lines behind
// the name of the program, none too long and not too many, and the last ones for a message. A
// traceback of Python is told once; where it comes again only what its exception says is, when that
// is new or has come ten times as often. In a message it is its exception with the place.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/rate_limit.h"
#include "core/base/time.h"
#include "sandbox/process/traceback.h"

namespace tailrace::sandbox {

// The part of the log that all processes of a program share.
struct StderrLog {
  // Gets each line in the place of our stderr.
  using Hear = std::function<void(const std::string& line)>;

  StderrLog() : StderrLog(std::make_shared<ToldTracebacks>()) {}
  explicit StderrLog(std::shared_ptr<ToldTracebacks> told, Hear hear = {});

  RateLimit limit;  // so many lines at once, and from then on one in each period
  const std::shared_ptr<ToldTracebacks> told;
  const Hear hear;
};

class StderrLines {
 public:
  // `log` outlives this. Null: the last lines are kept, and nothing else becomes of any.
  StderrLines(std::string program, StderrLog* log) : program_(std::move(program)), log_(log) {}

  void take(std::string_view bytes, Time now);
  // Nothing more comes.
  void end(Time now);
  // Behind end(): the last lines, joined by " | ", as far as a message has room; empty: there are
  // none.
  std::string last() const;

 private:
  void finish_line(Time now);
  void keep(std::string line);
  void tell(const std::string& line, Time now);
  void close_traceback(Time now);
  void finish_traceback(Time now);
  void tell_traceback(const std::vector<std::string>& lines, const std::string& summary, Time now);
  bool is_known_behind(const std::string& line);
  bool may_log(int64_t num_lines, Time now);

  void write(const std::string& text) const;

  std::string program_, line_;
  std::deque<std::string> last_;
  StderrLog* log_;
  int64_t num_unsaid_ = 0;
  Traceback traceback_;
  // The digest of the lines since a traceback, with it, and how many lines that may still be.
  uint64_t behind_ = 0;
  int num_behind_ = 0;
};

}  // namespace tailrace::sandbox
