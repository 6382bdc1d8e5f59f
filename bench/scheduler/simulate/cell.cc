#include <cmath>

#include "bench/scheduler/simulate/experiment.h"

namespace tailrace::simulate {

bool Cell::within() const {
  switch (bound) {
    case Bound::kExact:
      return std::abs(simulated - published) < 1e-9;
    case Bound::kTenPercent:
      return std::abs(simulated / published - 1) <= 0.1;
    case Bound::kTwentyPercent:
      return std::abs(simulated / published - 1) <= 0.2;
    case Bound::kOrder:
      return (simulated > 1) == (published > 1);
  }
  return false;
}

}  // namespace tailrace::simulate
