#include "kernels/cuda/product_table.h"

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include <fmt/format.h>

namespace tailrace::cuda {
namespace {

struct ForwardShape {
  int device = 0;
  int64_t out = 0, in = 0;
  bool y_is_float = false;
  auto operator<=>(const ForwardShape&) const = default;
};
struct GradientShape {
  int device = 0;
  ProductKind kind = ProductKind::kGradInput;
  int64_t out = 0, in = 0;
  auto operator<=>(const GradientShape&) const = default;
};

// The table of the process, as its backend is (kernels/base/backend.cc). A shape that was tried and
// failed has no algorithm.
struct ProvedTable {
  std::shared_mutex mutex;
  LibraryProducts* (*load)() = nullptr;
  std::optional<LibraryProducts*> library;
  std::map<ForwardShape, std::optional<ForwardWay>> forward;
  std::map<GradientShape, std::optional<LibraryAlgorithm>> gradients;
};
ProvedTable& table() {
  static ProvedTable all;
  return all;
}

// Caller locks.
LibraryProducts* library_of(ProvedTable& all) {
  if (!all.library) all.library = all.load == nullptr ? nullptr : all.load();
  return *all.library;
}

template <class Shape, class Way>
std::optional<Way> find_way(const std::map<Shape, std::optional<Way>>& ways, const Shape& shape) {
  const auto found = ways.find(shape);
  return found == ways.end() ? std::nullopt : found->second;
}

// The alignment that an algorithm was chosen for: each row begins at a multiple of 16 bytes.
bool is_aligned(const void* data, int64_t stride, size_t element_bytes) {
  return ((reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride) * element_bytes) &
          15) == 0;
}
bool is_aligned(const LibraryProduct& p) {
  return is_aligned(p.a, p.a_stride, sizeof(Bf16)) && is_aligned(p.b, p.b_stride, sizeof(Bf16)) &&
         is_aligned(p.c, p.c_stride, p.c_is_float ? sizeof(float) : sizeof(Bf16));
}

// FNV-1a: enough to tell tables apart.
uint32_t hash_bytes(uint32_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

GradientShape gradient_shape(const Stream& stream, ProductKind kind, int64_t out, int64_t in) {
  return {stream.device.index, kind, out, in};
}

}  // namespace

void provide_library(LibraryProducts* (*load)()) {
  ProvedTable& all = table();
  const std::unique_lock lock(all.mutex);
  all.load = load;
  all.library.reset();
  all.forward.clear();
  all.gradients.clear();
}

bool has_library() {
  ProvedTable& all = table();
  const std::unique_lock lock(all.mutex);
  return library_of(all) != nullptr;
}

void prove_shape(const Stream& stream, int64_t out, int64_t in, int64_t most_rows) {
  ProvedTable& all = table();
  // Nobody multiplies meanwhile: our own product, which proofs are made by, asks no table.
  const std::unique_lock lock(all.mutex);
  LibraryProducts* library = library_of(all);
  if (library == nullptr) return;
  for (const bool y_is_float : {false, true}) {
    const ForwardShape shape{stream.device.index, out, in, y_is_float};
    if (!all.forward.contains(shape))
      all.forward[shape] = prove_forward(stream, *library, out, in, y_is_float, most_rows);
  }
  for (const ProductKind kind : {ProductKind::kGradInput, ProductKind::kGradWeight}) {
    const GradientShape shape = gradient_shape(stream, kind, out, in);
    if (!all.gradients.contains(shape))
      all.gradients[shape] = prove_gradient(stream, *library, kind, out, in, most_rows);
  }
}

void prove_products(const Stream& stream, Dtype dtype, int64_t out, int64_t in) {
  if (dtype == Dtype::kBF16) prove_shape(stream, out, in);
}

std::string proved_products(int device_index) {
  ProvedTable& all = table();
  const std::shared_lock lock(all.mutex);
  uint32_t hash = 2166136261u;
  bool any = false;
  for (const auto& [shape, way] : all.forward) {
    if (shape.device != device_index || !way) continue;
    if (!std::exchange(any, true)) {
      const std::string version = (*all.library)->version();
      hash = hash_bytes(hash, version.data(), version.size());
    }
    const int64_t numbers[] = {shape.out, shape.in, shape.y_is_float ? 1 : 0, way->most_rows};
    hash = hash_bytes(hash, numbers, sizeof(numbers));
    hash = hash_bytes(hash, way->algorithm.data.data(), sizeof(way->algorithm.data));
  }
  return any ? fmt::format("{:08x}", hash) : "";
}

int64_t multiply_first_rows(const Stream& stream, const Bf16Product& p) {
  // The bias is added before y is rounded, and x is rounded where it is float32: our product alone
  // does that.
  if (p.tokens < kLeastLibraryRows || p.x_is_float || p.bias != nullptr ||
      p.groups.offsets != nullptr)
    return 0;
  ProvedTable& all = table();
  const std::shared_lock lock(all.mutex);
  const auto way =
      find_way(all.forward, ForwardShape{stream.device.index, p.out, p.in, p.y_is_float});
  if (!way) return 0;
  LibraryProduct piece = {.kind = ProductKind::kForward,
                          .a = static_cast<const Bf16*>(p.x),
                          .a_stride = p.x_stride,
                          .b = p.weight,
                          .b_stride = p.weight_stride,
                          .c = p.y,
                          .c_is_float = p.y_is_float,
                          .c_stride = p.y_stride,
                          .n = p.out,
                          .k = p.in,
                          .add = p.add};
  if (!is_aligned(piece)) return 0;
  const size_t y_row = static_cast<size_t>(p.y_stride) * (p.y_is_float ? 4 : 2);
  int64_t done = 0;
  // Only row counts that were proved, the largest first: a batch of any size is so many of them,
  // and our own product takes the rows that are left.
  for (piece.m = way->most_rows; piece.m >= kLeastLibraryRows; piece.m /= 2) {
    while (p.tokens - done >= piece.m) {
      if (!(*all.library)->multiply(stream, piece, way->algorithm)) return done;
      done += piece.m;
      piece.a += piece.m * piece.a_stride;
      piece.c = static_cast<std::byte*>(piece.c) + static_cast<size_t>(piece.m) * y_row;
    }
  }
  return done;
}

bool may_take_gradient(const Stream& stream, ProductKind kind, int64_t tokens, int64_t out,
                       int64_t in) {
  if (tokens < kLeastLibraryRows) return false;
  ProvedTable& all = table();
  const std::shared_lock lock(all.mutex);
  return find_way(all.gradients, gradient_shape(stream, kind, out, in)).has_value();
}

bool multiply_gradient(const Stream& stream, const LibraryProduct& p) {
  if (!is_aligned(p)) return false;
  ProvedTable& all = table();
  const std::shared_lock lock(all.mutex);
  const bool of_weight = p.kind == ProductKind::kGradWeight;
  const auto way =
      find_way(all.gradients, gradient_shape(stream, p.kind, of_weight ? p.m : p.k, p.n));
  return way && (*all.library)->multiply(stream, p, *way);
}

}  // namespace tailrace::cuda
