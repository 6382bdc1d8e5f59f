// Graphs of the emulated GPU: what was asked of a stream while it was captured, with a copy of each
// kernel's arguments. A launch asks for it again, in that order.
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/cuda/host/machine.h"

namespace tailrace::cuda::emulation {
namespace {

// A kernel, or a copy where it has no body.
struct Node {
  Launch launch;
  std::vector<std::max_align_t> arguments;  // launch.closure
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};
using Graph = std::vector<Node>;

std::map<std::pair<int, void*>, std::unique_ptr<Graph>> g_captures;  // under the machine's mutex
thread_local int t_captures = 0;                                     // that the thread has begun

Graph* capture_of(const Stream& stream) {
  const auto found = g_captures.find({stream.device.index, stream.native});
  return found == g_captures.end() ? nullptr : found->second.get();
}

void begin_capture(const Stream& stream) {
  TR_CHECK(stream.native != nullptr, "the default stream is captured");
  const MutexLock lock(g_machine.mutex);
  auto& capture = g_captures[{stream.device.index, stream.native}];
  TR_CHECK(capture == nullptr, "a stream is captured twice");
  capture = std::make_unique<Graph>();
  ++t_captures;
}

void* end_capture(const Stream& stream) {
  const MutexLock lock(g_machine.mutex);
  const auto found = g_captures.find({stream.device.index, stream.native});
  TR_CHECK(found != g_captures.end() && t_captures > 0, "a stream that this thread captures");
  Graph* graph = found->second.release();
  g_captures.erase(found);
  --t_captures;
  return graph;
}

void launch_graph(const Stream& stream, void* graph) {
  if (refuse_in_capture("a graph is launched")) return;
  for (const Node& node : *static_cast<const Graph*>(graph)) {
    if (node.launch.body == nullptr) {
      copy_in_stream(stream, node.to, node.from, node.bytes);
      continue;
    }
    Launch launch = node.launch;
    launch.closure = node.arguments.data();
    run(stream, launch);
  }
}

void free_graph(void* graph, int /*index*/) { delete static_cast<Graph*>(graph); }

}  // namespace

bool capture_launch(const Stream& stream, const Launch& launch) {
  const MutexLock lock(g_machine.mutex);
  Graph* graph = capture_of(stream);
  if (graph == nullptr) return false;
  Node& node = graph->emplace_back();
  node.launch = launch;
  node.arguments.resize(launch.closure_bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(node.arguments.data(), launch.closure, launch.closure_bytes);
  return true;
}

bool capture_copy(const Stream& stream, std::byte* to, const std::byte* from, size_t bytes) {
  Graph* graph = capture_of(stream);
  if (graph == nullptr) return false;
  Node& node = graph->emplace_back();
  node.to = to;
  node.from = from;
  node.bytes = bytes;
  return true;
}

bool refuse_in_capture(const char* what) {
  if (t_captures == 0) return false;
  const MutexLock lock(g_machine.mutex);
  error(nullptr, fmt::format("{} while a stream is captured", what));
  return true;
}

GraphCalls emulated_graphs() {
  return {.begin_capture = begin_capture,
          .end_capture = end_capture,
          .launch = launch_graph,
          .free = free_graph};
}

}  // namespace tailrace::cuda::emulation
