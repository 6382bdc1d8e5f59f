// The emulated GPU as tests and its provider see it.
//
// An error (a race, a deadlock, ...) is a sentence with its place. Somebody must take it: wait()
// with errors that nobody took ends the process, as a synchronisation does on a GPU, and so does
// the end of the process. What can be read of memory was let happen, except where the next step
// would have been out of bounds or without sense: there the launch ends.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/stream_graph.h"

namespace tailrace::cuda::emulation {

// All since the last call, oldest first; at most kMaxErrors are kept, one for a place of the
// source.
constexpr size_t kMaxErrors = 16;
std::vector<std::string> take_errors();

struct Stats {
  int64_t launches = 0, blocks = 0, threads = 0;
  int64_t switches = 0;        // of fibers
  int64_t accesses = 0;        // that the checker has seen
  int64_t copied_bytes = 0;    // that copy_async16 has read of the device's memory
  int64_t bank_conflicts = 0;  // of ldmatrix: rows of one matrix in the same banks
};
Stats stats();
void reset_stats();

// In which order lanes, warps and blocks run. At first what the environment variable EMU_ORDER says
// ("reverse" or "forward"), else forward. Results must not depend on it.
enum class Order : uint8_t { kForward, kReverse };
void set_order(Order order);
Order order();

// Whether some source of this program is checked (compiled with -fsanitize=thread).
bool checks_on();

// Memory of the emulated device: copies wait in their stream until a kernel is launched there or
// somebody waits for the stream; what they bring to the host arrives with wait(), or with that of a
// mark behind them, and not before, and until then the place on the host is full of 0xFF. Sources
// on the host are read as late.
DeviceMemory emulated_memory();
// A capture notes what is asked of its stream and copies the arguments. What a GPU forbids
// meanwhile is an error: to wait, to set a mark, to take or release memory.
GraphCalls emulated_graphs();
void wait(const Stream& stream);
// A stream's `native`.
void* make_stream(int index);
void free_stream(void* native, int index);

// As if the memory had just been taken from a workspace: it is filled with NaN (0xFF), and the
// checker names a kernel's read of it before a write.
void mark_unwritten(void* memory, size_t bytes);

// For tests without a Buffer: of device 0, full of NaN and not marked. To be read and written by
// the host between launches.
void* allocate(size_t bytes);
void release(void* memory);

}  // namespace tailrace::cuda::emulation
