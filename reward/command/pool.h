// The processes of a program that scores, and who is asked when.
//
// What waits is written to an idle process together, one JSON line for each episode and at most
// `batch` of them; the process lives on, and is given the next batch when it has answered the last
// one. A process that ends, is late, or writes what is no answer is killed with its process group.
// Then those of its batch that it has not answered are asked once more, each alone, so that one
// that nobody can score takes no other along.
//
// A process has started when it has answered its first episode, which it is given alone. While no
// process has, episodes have the time of a start besides; then their budgets begin.
//
// Thread: any; one of its own starts, reads and ends the processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"
#include "reward/verifier.h"
#include "sandbox/process/command.h"
#include "sandbox/process/program_loop.h"

namespace tailrace {

struct CommandPoolOptions {
  int batch = 8;     // episodes that a process is given together, at most
  int at_once = 8;   // episodes that are asked about at once; so many processes at most
  bool logs = true;  // what the program writes to stderr goes to ours
  sandbox::StderrLog::Hear hear = {};  // or here, on a thread of the pool's
  Time start{};                        // the first answer of a process may take so much longer
};

class CommandPool {
 public:
  // No process starts before the first episode.
  CommandPool(sandbox::CommandStart command, CommandPoolOptions options);
  ~CommandPool();  // kills the processes
  CommandPool(const CommandPool&) = delete;

  // `episode`: the members of a JSON object on one line, without its braces. A Failure: there is no
  // verdict within `budget`, and the time of a start where one is needed. Waits.
  Result<Score> ask(std::string episode, Time budget);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // the thread's too
  const sandbox::ProgramThread thread_;
};

}  // namespace tailrace
