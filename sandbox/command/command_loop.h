// The processes of a program that plays environments. A process plays one episode at a time, and
// the next one when that is over: interpreters start slowly. One thread starts, reads and ends them
// all, so that who begins a call waits for nothing.
//
// A process is told its settings by its first line (the greeting), and has started when it has
// answered that. A start has a deadline of its own, and the call that it is for waits for it: its
// deadline counts from then. So many start at once as the machine bears; other starts wait, and
// their deadlines count from when they begin. Each call is a line, and its answer a line, within a
// deadline. A process that is late, ends, or writes what is no answer is killed with its process
// group, and the call fails. One that ends between two episodes is replaced, and nobody hears of
// it.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"
#include "sandbox/process/command.h"
#include "sandbox/process/program_loop.h"
#include "sandbox/process/traceback.h"

namespace tailrace::sandbox {

struct CommandCall {
  std::string line;       // without its end
  const char* name = "";  // "step()", for messages, a literal
  Time timeout{};         // of the answer, from when a process has the line
  bool begins = false;    // a process may start for it; others go to the process of the episode
  // Exactly one of these two, once and soon: mostly on the loop's thread, which must not wait.
  // Takes the answer; a text says why it is none. The process is then lost, and `fail` comes.
  std::function<std::optional<std::string>(const std::string& answer)> take = nullptr;
  std::function<void(const Failure&)> fail = nullptr;
};

class CommandLoop {
 public:
  using Episode = uint64_t;

  // `greeting`: its `take` is asked about the first line of each process, its `timeout` is that of
  // a start, and it has no `fail`. `told`: of what the program writes to stderr, which goes to
  // ours; null: it does not.
  CommandLoop(CommandStart start, CommandCall greeting, int64_t starts_at_once,
              std::shared_ptr<ToldTracebacks> told);
  ~CommandLoop();  // kills the processes; calls in flight fail
  CommandLoop(const CommandLoop&) = delete;

  Episode open();
  // At most one call of an episode at a time.
  void begin(Episode episode, CommandCall call);
  // Its process is told by `goodbye`, if there is one, and then plays another one. A process that
  // is in a call of the episode is killed.
  void release(Episode episode, std::optional<CommandCall> goodbye);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // the thread's too
  const ProgramThread thread_;
};

}  // namespace tailrace::sandbox
