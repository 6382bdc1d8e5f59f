#include "kernels/base/backend.h"

#include <array>
#include <optional>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

struct Provided {
  Backend backend;
  std::optional<BackendFacts> facts;
};
std::array<Provided, 2>& provided() {  // by kind; that of the CPU stays empty
  static std::array<Provided, 2> all;
  return all;
}
Provided& provided(DeviceKind kind) { return provided()[static_cast<size_t>(kind)]; }

}  // namespace

void provide_backend(DeviceKind kind, const Backend& backend) {
  provided(kind) = {backend, std::nullopt};
  provide_memory(kind, backend.memory);
}

const BackendFacts& backend_facts(DeviceKind kind) {
  Provided& found = provided(kind);
  if (!found.facts) {
    if (found.backend.facts != nullptr) {
      found.facts = found.backend.facts();
    } else {
      found.facts.emplace();
      found.facts->fault =
          "this build has no CUDA backend; 'make build' adds it where nvcc is found";
    }
  }
  return *found.facts;
}

int64_t free_bytes(Device device) {
  const auto ask = provided(device.kind).backend.free_bytes;
  return ask == nullptr ? -1 : ask(device.index);
}

std::vector<LibraryFacts> backend_libraries(DeviceKind kind) {
  const auto libraries = provided(kind).backend.libraries;
  return libraries == nullptr ? std::vector<LibraryFacts>() : libraries();
}

std::string library_products(Device device) {
  const auto ask = provided(device.kind).backend.library_products;
  return ask == nullptr ? "" : ask(device.index);
}

OwnedStream::OwnedStream(Device device, ThreadPool* pool) : stream_{device, pool, nullptr} {
  const Backend& backend = provided(device.kind).backend;
  if (device.kind != DeviceKind::kCpu) stream_.native = backend.make_stream(device.index);
}

OwnedStream::~OwnedStream() {
  const Device device = stream_.device;
  if (device.kind == DeviceKind::kCpu) return;
  wait(stream_);
  provided(device.kind).backend.free_stream(stream_.native, device.index);
}

}  // namespace tailrace
