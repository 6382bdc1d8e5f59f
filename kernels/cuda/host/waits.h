// How often the host waited for the emulated GPU: what the emulation, which takes no time, can say
// of asynchrony.
//
// Thread: any.
#pragma once

#include <cstdint>

namespace tailrace::cuda::emulation {

// Since the process began. A wait with nothing asked of the stream since the last one counts as
// neither.
struct HostWaits {
  // For all that was asked, or for a mark with no kernel behind it: a GPU has no work then.
  int64_t idle = 0;
  // For a mark with kernels behind it, which a GPU computes in the meantime.
  int64_t busy = 0;
};
HostWaits host_waits();

}  // namespace tailrace::cuda::emulation
