#include "core/model/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

std::vector<ModelConfig> configs() {
  ModelConfig padded = awkward_config(false), fused = sparse_config();
  padded.padded_ids = 5;
  fused.fused_experts = true;
  return {awkward_config(true), awkward_config(false), padded,
          rich_config(),        sparse_config(),       fused};
}

Parameters random_parameters(const ParameterLayout& layout) {
  Parameters parameters(layout);
  Rng rng(3);
  for (const ParameterInfo& info : layout.entries()) {
    for (float& value : parameters.vector(info.name)) value = static_cast<float>(rng.normal());
    parameters.vector(info.name)[0] = -0.0f;
  }
  return parameters;
}

TEST(PackedWeights, ReadsBackWhatWasPacked) {
  for (const ModelConfig& config : configs()) {
    const ParameterLayout layout(config);
    const Parameters parameters = random_parameters(layout);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const PackedWeights packed(Stream{}, config, parameters, dtype);
      const std::vector<PackedTensor> tensors = packed.tensors();
      ASSERT_EQ(tensors.size(), layout.entries().size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        const PackedTensor& tensor = tensors[i];
        const ParameterInfo& info = layout.entries()[i];
        EXPECT_EQ(tensor.name, info.name);
        EXPECT_EQ(tensor.dtype, info.shape.size() == 1 ? Dtype::kF32 : dtype);
        const int64_t cols = std::max<int64_t>(tensor.cols, 1);
        ASSERT_EQ(tensor.rows * cols, info.size) << info.name;
        std::vector<float> values(static_cast<size_t>(info.size));
        // In two pieces, which are cut inside of a panel and of a stack.
        const int64_t cut = tensor.rows / 3;
        const Matrix all(values.data(), tensor.rows, cols);
        packed.read(Stream{}, tensor, 0, all.slice_rows(0, cut));
        packed.read(Stream{}, tensor, cut, all.slice_rows(cut, tensor.rows));
        const bool is_factor = config.offset_norms && info.kind == ParameterKind::kNorm;
        for (size_t j = 0; j < values.size(); ++j) {
          const float value = parameters.vector(info.name)[j] + (is_factor ? 1.0f : 0.0f);
          ASSERT_EQ(values[j], tensor.dtype == Dtype::kBF16 ? to_float(to_bf16(value)) : value)
              << info.name << " at " << j;
        }
      }
    }
  }
}

// A file has its tensors in any order, so those of one matrix need not follow each other.
TEST(PackedWeights, HasTheSameBytesFromTensorsInSeveralPlaces) {
  ModelConfig wide = awkward_config(false);
  wide.hidden_size = 5000;  // a few rows are a megabyte
  std::vector<ModelConfig> all = configs();
  all.push_back(wide);
  for (const ModelConfig& config : all) {
    const ParameterLayout layout(config);
    const Parameters parameters = random_parameters(layout);
    std::map<std::string, std::vector<float>, std::less<>> scattered;
    for (const ParameterInfo& info : layout.entries()) {
      const auto values = parameters.vector(info.name);
      scattered[info.name].assign(values.begin(), values.end());
    }
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const PackedWeights whole(Stream{}, config, parameters, dtype);
      PackedWeights pieces(config, dtype,
                           Buffer(static_cast<size_t>(PackedWeights::bytes(config, dtype))));
      pieces.repack(Stream{}, [&](std::string_view name) -> std::span<const float> {
        return scattered.find(name)->second;
      });
      const auto expected = whole.memory(), found = pieces.memory();
      ASSERT_EQ(expected.size, found.size);
      EXPECT_EQ(std::memcmp(expected.data, found.data, found.size), 0);
    }
  }
}

}  // namespace
}  // namespace tailrace
