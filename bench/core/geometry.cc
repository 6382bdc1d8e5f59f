#include "bench/core/geometry.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

struct Geometry {
  const char* name;
  GeometrySizes sizes;
  int64_t experts = 0, experts_per_token = 0;  // each of ffn / experts_per_token
};

constexpr Geometry kGeometries[] = {
    {"tiny", {4, 128, 4, 2, 384, 512}},
    {"small", {8, 512, 8, 2, 1408, 8192}},
    {"grid", {3, 64, 4, 2, 192, 44}},
    {"sparse", {8, 512, 8, 2, 1408, 8192}, 16, 4},  // small, by experts
    {"medium", {24, 896, 14, 2, 4864, 151936}},
};

}  // namespace

ModelConfig config_of(const GeometrySizes& sizes, int64_t max_positions) {
  ModelConfig config;
  config.num_layers = sizes.layers;
  config.hidden_size = sizes.hidden;
  config.num_heads = sizes.heads;
  config.num_kv_heads = sizes.kv_heads;
  config.head_dim = sizes.hidden / sizes.heads;
  config.intermediate_size = sizes.ffn;
  config.vocab_size = sizes.vocab;
  config.max_positions = max_positions;
  config.tie_embeddings = true;
  return config;
}

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
  if (found->experts > 0) {
    config.sparse.assign(static_cast<size_t>(config.num_layers), true);
    config.num_experts = found->experts;
    config.experts_per_token = found->experts_per_token;
    config.expert_size = config.intermediate_size / found->experts_per_token;
    config.normalised_experts = config.choice_bias = true;
  }
  return config;
}

void describe_geometry(const std::string& name, const ModelConfig& config, int64_t num_parameters,
                       Settings& settings, Dtype dtype) {
  settings.insert(settings.end(), {{"geometry", name},
                                   {"layers", config.num_layers},
                                   {"hidden", config.hidden_size},
                                   {"heads", config.num_heads},
                                   {"kv_heads", config.num_kv_heads},
                                   {"ffn", config.intermediate_size},
                                   {"vocab", config.vocab_size},
                                   {"parameters", num_parameters},
                                   {"dtype", dtype == Dtype::kBF16 ? "bf16" : "fp32"}});
}

}  // namespace tailrace
