// One thread that starts programs, writes to them, hears their lines, keeps their deadlines and
// kills them. Who talks to programs derives its own state from it, of which everything but orders
// belongs to that thread, and has a Conversation with each program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/file_descriptor.h"
#include "core/base/rate_limit.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "kernels/base/mutex.h"
#include "sandbox/process/command.h"
#include "sandbox/process/process.h"
#include "sandbox/process/stderr_lines.h"

namespace tailrace::sandbox {

// How a program was lost.
struct ProgramLoss {
  std::string why;                  // "has ended with status 1"
  std::string last = {};            // of its stderr; empty: nothing
  std::string rest = {};            // of its stdout, behind the last end of a line
  bool has_ended = false;           // by itself; else it was killed
  bool is_good_end = false;         // by itself, with status 0
  std::string quoted_last() const;  // "; its stderr ends: ...", or nothing
};

// The part that differs between those who talk to programs.
class Conversation {
 public:
  virtual ~Conversation() = default;

  // A line of its stdout, without its end and never blank; `behind` is what came after it. A text
  // says why it is no answer, and the program is lost.
  virtual std::optional<std::string> hear(const std::string& line, std::string_view behind) = 0;
  // Its deadline is over: why it is lost.
  virtual std::string late() = 0;
  // It has ended, and its process group was not killed yet. False: it is asked again soon.
  virtual bool may_end() { return true; }
  // The program is gone, and nothing more is heard of it; after kill() this is not called. The
  // conversation may be deleted within the call.
  virtual void lost(const ProgramLoss& loss) = 0;
};

struct ProgramRules {
  size_t most_line_bytes;
  const char* awaited = "an end of line";  // what did not come within so many bytes
  bool keeps_end = false;         // of a longer line its end is kept; else the program is lost
  bool may_close_stdout = false;  // and go on; else it is lost
};

class ProgramLoop;

// A program that a loop drives.
class ChildProgram {
 public:
  ~ChildProgram();  // kills it
  ChildProgram(const ChildProgram&) = delete;

  // As much as its stdin takes now, and the rest when it does.
  void write(std::string_view bytes);
  // Nothing is written behind what was written so far.
  void close_in();
  void set_deadline(Time deadline) { deadline_ = deadline; }  // Time::max(): none
  // Output that it has written behind the last end of a line does not count.
  void forget_rest();
  Offspring::Family take_family() { return process_->take_family(); }
  FileDescriptor take_listening() { return process_->take_listening(); }
  // Nothing more is heard of it.
  ProgramLoss kill(std::string why);

 private:
  friend class ProgramLoop;
  ChildProgram(ProgramLoop& loop, std::unique_ptr<CommandProcess> process, StderrLines said,
               Conversation& conversation, const ProgramRules& rules);
  void write_some();
  bool read_out();  // a piece; false: there is nothing now
  void read_err();
  // The next one that is whole and not blank.
  std::optional<std::string> next_line();
  std::string_view unread() const { return std::string_view(read_).substr(num_taken_); }
  Time due() const;  // when the loop looks at it, whatever happens

  ProgramLoop& loop_;
  const uint64_t id_;
  std::unique_ptr<CommandProcess> process_;  // null: it is gone
  StderrLines said_;
  Conversation& conversation_;
  const ProgramRules rules_;
  std::string to_write_ = {}, read_ = {};
  size_t num_written_ = 0, num_taken_ = 0, num_searched_ = 0;
  bool waits_to_write_ = false, closes_in_ = false, out_is_closed_ = false, has_ended_ = false;
  Time deadline_ = Time::max(), closed_at_{}, looked_at_{};
};

class ProgramLoop {
 public:
  // With true on the loop's thread; with false once the loop is ending, maybe on the thread of who
  // gives it.
  using Order = std::function<void(bool goes_on)>;

  // `name`: of the programs, for messages. `told`: of what they write to stderr, which goes to ours
  // as notes do; null: neither does. `hear`: gets it instead, on the loop's thread, and before what
  // the same program has written to stdout since; there are no notes then. Throws UserError: no
  // files are left.
  ProgramLoop(std::string name, std::shared_ptr<ToldTracebacks> told, StderrLog::Hear hear = {});
  virtual ~ProgramLoop() = default;  // no program is left
  ProgramLoop(const ProgramLoop&) = delete;

  // Any thread; waits for nothing. Without `wakes` it is taken when the loop wakes up anyway.
  void post(Order order, bool wakes = true);
  void close();
  // The thread of the loop, until close().
  void run();

 protected:
  const std::string& name() const { return name_; }
  void wake();  // any thread

  // --- The loop's thread.

  // The conversation is borrowed until the program is gone.
  Result<std::unique_ptr<ChildProgram>> start(const CommandStart& command,
                                              Conversation& conversation,
                                              const ProgramRules& rules);
  // A line of the log, if it is within the limit.
  void note(const std::string& what);
  // The same, also where nothing else is logged; whoever says it bounds it.
  void tell(const std::string& what) const;
  // Behind each round of orders and events; when the next one is wanted at the latest.
  virtual Time turn(Time /*now*/) { return Time::max(); }
  // It is closed: whoever still waits hears so, and no program is kept.
  virtual void end() = 0;
  // Events of files that are no program's, under numbers that the derived class gives.
  void watch_file(int operation, int file, uint32_t what, uint64_t number) const;
  virtual void hear_file(uint64_t /*number*/, uint32_t /*what*/) {}
  // The orders so far. False: it is closed.
  bool take_orders();
  // turn(), and the events until then. For end(), where it still waits for something.
  void round();

 private:
  friend class ChildProgram;
  using Id = uint64_t;
  enum Stream : uint64_t { kIn, kOut, kErr, kEnd, kFile, kStreams };

  void watch(int operation, int file, uint32_t what, Id id, Stream stream) const;
  void wait(Time until);
  ChildProgram* find(Id id) const;
  void hear(Id id, Stream stream);
  void hear_out(Id id);
  bool take_lines(Id id);
  void settle(Id id);
  void look_at_due(Time now);
  static void lose(ChildProgram& program, std::string why);

  const std::string name_;
  const bool logs_;
  const FileDescriptor epoll_, wake_;
  Mutex mutex_;
  std::deque<Order> orders_ TR_GUARDED_BY(mutex_);
  bool is_closing_ TR_GUARDED_BY(mutex_) = false, is_woken_ TR_GUARDED_BY(mutex_) = false;
  // The thread's own.
  StderrLog log_;
  RateLimit notes_;
  int64_t num_unnoted_ = 0;
  std::map<Id, ChildProgram*> programs_;  // that are not gone
  bool has_started_own_ = false;          // one that is not isolated
  Id last_id_ = 0;
};

// The thread of a loop, which ends with it.
class ProgramThread {
 public:
  explicit ProgramThread(std::shared_ptr<ProgramLoop> loop);
  // On that thread itself, as the last owner may be whom it has just answered, it waits for
  // nothing.
  ~ProgramThread();

 private:
  const std::shared_ptr<ProgramLoop> loop_;
  std::thread thread_;
};

}  // namespace tailrace::sandbox
