#include "bench/gpu/geometries.h"

#include <algorithm>
#include <iterator>

#include "bench/core/geometry.h"
#include "kernels/base/check.h"

namespace tailrace::gpu_bench {
namespace {

struct Geometry {
  const char* name;
  GeometrySizes sizes;
  bool tied;
};

constexpr Geometry kGeometries[] = {
    {"mini", {2, 64, 4, 2, 128, 131}, true},
    {"qwen2.5-0.5b", {24, 896, 14, 2, 4864, 151936}, true},
    {"qwen2.5-1.5b", {28, 1536, 12, 2, 8960, 151936}, true},
    {"qwen2.5-7b", {28, 3584, 28, 4, 18944, 152064}, false},
};

}  // namespace

const std::vector<std::string>& geometry_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Geometry& geometry : kGeometries) all.emplace_back(geometry.name);
    return all;
  }();
  return names;
}

ModelConfig geometry(const std::string& name, int64_t max_positions) {
  const auto* found = std::ranges::find(kGeometries, name, &Geometry::name);
  TR_CHECK(found != std::end(kGeometries), "no geometry '{}'", name);
  ModelConfig config = config_of(found->sizes, max_positions);
  config.tie_embeddings = found->tied;
  config.qkv_bias = true;
  return config;
}

}  // namespace tailrace::gpu_bench
