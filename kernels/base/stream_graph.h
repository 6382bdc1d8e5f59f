// The work that was asked of a stream, to be asked of it again in one call.
//
// A graph repeats the ops and copies with their arguments: addresses, sizes and numbers are those
// of the capture; what lies at the addresses is read anew each time. So whoever captures keeps in
// memory whatever changes, and all of that memory where it is.
#pragma once

#include "kernels/base/device.h"

namespace tailrace {

// How one kind of device has graphs.
struct GraphCalls {
  void (*begin_capture)(const Stream& stream) = nullptr;
  void* (*end_capture)(const Stream& stream) = nullptr;
  void (*launch)(const Stream& stream, void* graph) = nullptr;
  void (*free)(void* graph, int index) = nullptr;
};
// A backend's, beside its memory. Without it there are none.
void provide_graphs(DeviceKind kind, const GraphCalls& calls);

// Move-only. Dies when nothing of it is under way, and before the memory that it names.
//
// Thread: one at a time.
class StreamGraph {
 public:
  // Not on the CPU, and not on a device's default stream.
  static bool is_available(const Stream& stream);

  StreamGraph() = default;
  StreamGraph(StreamGraph&& other) noexcept;
  StreamGraph& operator=(StreamGraph&& other) noexcept;
  ~StreamGraph();

  // From begin() to end() what is asked of the stream is not done, but becomes the graph. Until
  // then its thread waits for nothing, allocates nothing, and finds nothing in what a copy brings.
  void begin(const Stream& stream);
  void end();
  bool empty() const { return native_ == nullptr; }
  // In the order of a stream of the same device.
  void launch(const Stream& stream) const;

 private:
  Stream stream_;  // of the capture
  void* native_ = nullptr;
};

}  // namespace tailrace
