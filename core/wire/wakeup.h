// Wakes a thread that waits on a socket: a descriptor to wait on beside it.
//
// Thread: ring() any; the others the waiting thread.
#pragma once

#include <cerrno>
#include <cstdint>

#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace::wire {

class Wakeup {
 public:
  // Throws UserError when the system gives none.
  Wakeup() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) throw UserError("{}", describe_errno("make", "an event", errno));
  }
  ~Wakeup() { ::close(descriptor_); }
  Wakeup(const Wakeup&) = delete;

  void ring() {
    const uint64_t one = 1;
    // A full counter is as loud as a new ring.
    [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
  }
  // Whether it rang since it was asked last.
  bool silence() {
    uint64_t rings = 0;
    return ::read(descriptor_, &rings, sizeof rings) == sizeof rings;
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace tailrace::wire
