#include "sandbox/environment.h"

namespace tailrace::sandbox {

uint64_t task_seed(uint64_t run_seed, bool held_out, int64_t prompt) {
  constexpr uint64_t kTopBit = uint64_t{1} << 63;
  const uint64_t seed = mix({run_seed, static_cast<uint64_t>(prompt)});
  // 63 bits of the mixed seed are left: two prompts of one side collide as good as never.
  return held_out ? seed | kTopBit : seed & ~kTopBit;
}

}  // namespace tailrace::sandbox
