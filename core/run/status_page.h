// Memory that a role's process shares with its supervisor: that its work goes on, what it says
// about who waits for whom, and which calls of libraries it is in.
//
// It has no name in any file system, so that nobody else can cut, fill or remove it, and a killed
// process leaves nothing behind.
//
// Thread: set_waits() one thread of one process; the rest any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/run/call_board.h"
#include "kernels/base/pulse.h"

namespace tailrace {

// The scheduler's knowledge of a run that stands still.
struct Waits {
  std::string line;               // who waits for whom since when; empty: nothing is known
  std::chrono::seconds quiet{0};  // since anything came in
  int64_t failed_in_row = 0;      // attempts since the last sample; then the line begins with why
};

class StatusPage {
 public:
  // A new one; a Failure when the system gives no memory.
  static Result<StatusPage> create();
  // The one behind a descriptor that a supervisor passed on. A Failure when it is none.
  static Result<StatusPage> adopt(int descriptor);
  StatusPage(StatusPage&&) noexcept = default;
  StatusPage& operator=(StatusPage&&) = delete;

  int descriptor() const { return descriptor_.get(); }
  Pulse& pulse() const;
  // It may outlive the page, with a thread that nobody could end.
  std::shared_ptr<CallBoard> calls() const;
  // Lines that are too long are cut.
  void set_waits(const Waits& waits);
  Waits waits() const;

 private:
  struct Layout;
  StatusPage(FileDescriptor descriptor, std::shared_ptr<Layout> layout);
  static Result<StatusPage> map(FileDescriptor descriptor);

  FileDescriptor descriptor_;
  std::shared_ptr<Layout> layout_;
};

}  // namespace tailrace
