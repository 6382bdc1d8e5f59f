// A program as a process that lives on: started in a session of its own, talked to over pipes that
// never make anybody wait, and killed with all that it has started (offspring.h).
//
// Thread: the one that started it, with which it dies.
#pragma once

#include <memory>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "sandbox/process/command.h"
#include "sandbox/process/offspring.h"

namespace tailrace::sandbox {

class CommandProcess {
 public:
  virtual ~CommandProcess() = default;  // kills it

  // A Failure where it cannot be started: no such program, a file that has changed (check_files),
  // no processes, no isolation.
  static Result<std::unique_ptr<CommandProcess>> start(const CommandStart& command);

  virtual int in() const = 0;     // its stdin, to write to
  virtual void close_in() = 0;    // nothing more is written there
  virtual int out() const = 0;    // its stdout, to read
  virtual int err() const = 0;    // its stderr
  virtual int pidfd() const = 0;  // readable once it has ended
  // The family of one that is not isolated: what it starts, which then lives as long as the family.
  virtual Offspring::Family take_family() { return {}; }
  // The socket that listens at the port of an isolated one, once.
  virtual FileDescriptor take_listening() { return FileDescriptor(); }
  // "has ended with status 1", of one that has.
  static constexpr const char* kGoodEnd = "has ended with status 0";
  virtual std::string ending() = 0;
};

// For a thread that drives programs: signals are for other threads, and that a program has closed
// its stdin is heard of by an error.
void leave_signals_to_others();

}  // namespace tailrace::sandbox
