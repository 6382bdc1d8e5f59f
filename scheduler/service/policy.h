// The policy that a run trains. With several, a worker says which one is its own (Hello).
#pragma once

#include "core/base/ids.h"

namespace tailrace::scheduler {

constexpr PolicyId kPolicy = 0;

}  // namespace tailrace::scheduler
