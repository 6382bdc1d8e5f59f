// A program that scores, as a process that lives on: started, talked to over pipes that never make
// anybody wait, and killed with all of its process group.
//
// Thread: the one that started it, with which it dies.
#pragma once

#include <memory>
#include <string>

#include "core/base/result.h"
#include "reward/command/command.h"

namespace tailrace {

class CommandProcess {
 public:
  virtual ~CommandProcess() = default;  // kills it

  // A Failure where it cannot be started: no such program, a file that has changed (check_files),
  // no processes, no isolation.
  static Result<std::unique_ptr<CommandProcess>> start(const RewardCommand& command);

  virtual int in() const = 0;     // its stdin, to write to
  virtual int out() const = 0;    // its stdout, to read
  virtual int err() const = 0;    // its stderr
  virtual int pidfd() const = 0;  // readable once it has ended
  // "has ended with status 1", of one that has.
  virtual std::string ending() = 0;
};

}  // namespace tailrace
