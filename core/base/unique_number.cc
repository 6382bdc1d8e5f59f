#include "core/base/unique_number.h"

#include <sys/random.h>

#include "kernels/base/check.h"

namespace tailrace {

uint64_t unique_number() {
  uint64_t number = 0;
  while (number == 0) {
    // Small requests are never cut; before the system has any randomness the call waits.
    TR_CHECK(::getrandom(&number, sizeof number, 0) == sizeof number);
  }
  return number;
}

}  // namespace tailrace
