#include "sandbox/environment.h"

namespace tailrace::sandbox {

uint64_t task_seed(uint64_t run_seed, bool held_out, int64_t prompt, int32_t dataset) {
  constexpr uint64_t kTopBit = uint64_t{1} << 63;
  // Without the number of the first one, which most runs have alone.
  const uint64_t seed =
      dataset == 0 ? mix({run_seed, static_cast<uint64_t>(prompt)})
                   : mix({run_seed, static_cast<uint64_t>(prompt), static_cast<uint64_t>(dataset)});
  // 63 bits of the mixed seed are left: two prompts of one side collide as good as never.
  return held_out ? seed | kTopBit : seed & ~kTopBit;
}

}  // namespace tailrace::sandbox
