// How a process of Tailrace ends: its exit status, the same for every command and role.
#pragma once

namespace tailrace {

// Converts to int where a system call or a library wants one.
enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,
  kExitUserError = 2,      // a person must mend something; the last lines of the log say what
  kExitInterrupted = 130,  // 128 + SIGINT: stopped as somebody asked; it can be continued
};

}  // namespace tailrace
