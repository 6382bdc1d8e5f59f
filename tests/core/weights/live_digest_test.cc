#include "core/weights/live_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "core/weights/version_folder.h"
#include "kernels/base/isa.h"
#include "kernels/base/thread_pool.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

// Sizes that no panel of 32 rows divides, and an embedding of three blocks.
ModelConfig three_block_config() {
  ModelConfig config;
  config.vocab_size = 5003;
  config.hidden_size = 120;
  config.intermediate_size = 52;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  return config;
}

std::vector<std::pair<std::string, ModelConfig>> configs() {
  ModelConfig tied = three_block_config(), offset = three_block_config(),
              experts = three_block_config(), padded = three_block_config();
  tied.tie_embeddings = true;
  offset.offset_norms = offset.post_norms = offset.qk_norm = offset.qkv_bias = true;
  experts.sparse = {false, true};
  experts.num_experts = 5;
  experts.experts_per_token = 2;
  experts.expert_size = 21;
  experts.choice_bias = true;
  ModelConfig fused = experts;
  fused.fused_experts = true;
  fused.expert_size = 1200;  // a matrix of an expert is more than a block
  padded.padded_ids = 7;
  return {{"plain", three_block_config()},
          {"tied", tied},
          {"offset norms", offset},
          {"experts", experts},
          {"fused", fused},
          {"padded", padded}};
}

// A version that is published, proved and packed.
struct Version {
  Version(const ModelConfig& config, Dtype dtype, const Stream& stream) : layout(config) {
    Parameters parameters(layout);
    Rng rng(5);
    for (const ParameterInfo& info : layout.entries()) {
      for (float& value : parameters.vector(info.name))
        value = static_cast<float>(rng.uniform() - 0.5);
      parameters.vector(info.name).back() = -0.0f;
    }
    const WeightManifest manifest = make_manifest(parameters, 0, 1, "", {}, dtype);
    root = manifest.root;
    const auto file = publish_weights(folder.path(), manifest, parameters);
    proved.emplace(prove_weights(folder / file.value(), root, layout).value());
    packed = std::make_unique<PackedWeights>(stream, config, parameters, dtype);
  }

  TemporaryDirectory folder;
  ParameterLayout layout;
  Digest root;
  std::optional<ProvedWeights> proved;
  std::unique_ptr<PackedWeights> packed;
};

TEST(LiveDigest, OfWhatWasPackedIsTheRootOfItsVersion) {
  ThreadPool pool(3);
  for (const auto& [name, config] : configs()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
        const Stream stream{.device = {}, .pool = threads, .native = nullptr};
        const Version version(config, dtype, stream);
        const auto live = prove_packed(stream, *version.packed, *version.proved);
        ASSERT_TRUE(live) << name << ": " << live.failure().message;
        EXPECT_EQ(live.value(), version.root) << name;
      }
    }
  }
}

// The lowest byte of an element in the packed memory: panels of kWeightRows rows, as the CPU's
// products read them (kernels/cpu/gemm.h). The memory is the test's own.
std::byte& byte_of(const PackedTensor& tensor, int64_t row, int64_t col) {
  row += tensor.first_row;
  if (tensor.cols == 0) {
    const float& value = tensor.vector[static_cast<size_t>(row)];
    return *reinterpret_cast<std::byte*>(const_cast<float*>(&value));
  }
  const Weight weight = tensor.matrices.at(row / tensor.matrices.first.out);
  row %= weight.out;
  const bool pairs = weight.dtype == Dtype::kBF16 && isa() == Isa::kAvx512Bf16;
  const int64_t panel = row / kWeightRows, in_panel = row % kWeightRows;
  const int64_t element =
      pairs ? (panel * ((weight.in + 1) / 2) + col / 2) * 2 * kWeightRows + 2 * in_panel + col % 2
            : (panel * weight.in + col) * kWeightRows + in_panel;
  return const_cast<std::byte*>(weight.data)[element * size_of(weight.dtype)];
}

TEST(LiveDigest, FindsAndNamesAFlippedBitOfAnyTensor) {
  for (const auto& [name, config] : configs()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Version version(config, dtype, Stream{});
      for (const PackedTensor& tensor : version.packed->tensors()) {
        for (const bool last : {false, true}) {
          std::byte& byte =
              last ? byte_of(tensor, tensor.rows - 1, std::max<int64_t>(tensor.cols, 1) - 1)
                   : byte_of(tensor, 0, 0);
          byte ^= std::byte{1};
          const auto live = prove_packed(Stream{}, *version.packed, *version.proved);
          ASSERT_FALSE(live) << name << " " << tensor.name;
          EXPECT_NE(live.failure().message.find("tensor " + tensor.name + " block "),
                    std::string::npos)
              << live.failure().message;
          byte ^= std::byte{1};
        }
      }
      EXPECT_TRUE(prove_packed(Stream{}, *version.packed, *version.proved)) << name;
    }
  }
}

// As a careless copy would, or a disk: in place, behind the proof.
TEST(LiveDigest, RefusesAFileThatHasChangedSinceItsProof) {
  for (const auto& [name, config] : configs()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Version version(config, dtype, Stream{});
      for (const auto& entry : std::filesystem::directory_iterator(version.folder.path())) {
        if (entry.path().extension() != ".safetensors") continue;
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(entry.path()) / 8 * 4));
        const std::vector<float> other(64, 3.0f);
        file.write(reinterpret_cast<const char*>(other.data()), 4 * std::ssize(other));
      }
      version.packed->repack(
          Stream{}, [&](std::string_view tensor) { return version.proved->values(tensor); });
      EXPECT_FALSE(prove_packed(Stream{}, *version.packed, *version.proved)) << name;
    }
  }
}

}  // namespace
}  // namespace tailrace
