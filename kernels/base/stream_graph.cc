#include "kernels/base/stream_graph.h"

#include <array>
#include <utility>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

constinit std::array<GraphCalls, 2> g_graph_calls{};  // by kind

const GraphCalls& calls_of(const Stream& stream) {
  return g_graph_calls[static_cast<size_t>(stream.device.kind)];
}

}  // namespace

void provide_graphs(DeviceKind kind, const GraphCalls& calls) {
  g_graph_calls[static_cast<size_t>(kind)] = calls;
}

bool StreamGraph::is_available(const Stream& stream) {
  return stream.native != nullptr && calls_of(stream).begin_capture != nullptr;
}

StreamGraph::StreamGraph(StreamGraph&& other) noexcept
    : stream_(other.stream_), native_(std::exchange(other.native_, nullptr)) {}

StreamGraph& StreamGraph::operator=(StreamGraph&& other) noexcept {
  // As a Buffer's.
  std::swap(stream_, other.stream_);
  std::swap(native_, other.native_);
  return *this;
}

StreamGraph::~StreamGraph() {
  if (native_ != nullptr) calls_of(stream_).free(native_, stream_.device.index);
}

void StreamGraph::begin(const Stream& stream) {
  TR_CHECK(empty() && is_available(stream), "a graph of device {}", stream.device.index);
  stream_ = stream;
  calls_of(stream).begin_capture(stream);
}

void StreamGraph::end() { native_ = calls_of(stream_).end_capture(stream_); }

void StreamGraph::launch(const Stream& stream) const {
  TR_CHECK(!empty() && stream.device == stream_.device, "a graph of device {} on device {}",
           stream_.device.index, stream.device.index);
  calls_of(stream).launch(stream, native_);
}

}  // namespace tailrace
