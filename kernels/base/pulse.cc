#include "kernels/base/pulse.h"

#include <utility>

namespace tailrace {
namespace {

thread_local Pulse* bound = nullptr;

}  // namespace

Pulse* bound_pulse() { return bound; }

PulseScope::PulseScope(Pulse* pulse) : before_(std::exchange(bound, pulse)) {}
PulseScope::~PulseScope() { bound = before_; }

void beat() {
  if (bound != nullptr) bound->beat();
}

}  // namespace tailrace
