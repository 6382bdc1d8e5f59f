// Versions of the weights staged into the memory of a GPU, proved there, and switched to.
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/packed_digests.h"
#include "core/model/parameters.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "kernels/base/backend.h"
#include "kernels/base/memory.h"
#include "kernels/cuda/provide.h"
#include "kernels/ops/linear.h"
#include "rollout/worker/weight_stage.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr Device kGpu{.kind = DeviceKind::kCuda};

class DeviceStage : public ::testing::TestWithParam<Dtype> {
 protected:
  DeviceStage() {
    provide_cuda();
    // Rows of no multiple of 16 bytes.
    config_.vocab_size = 71;
    config_.hidden_size = 26;
    config_.intermediate_size = 42;
    config_.num_layers = 2;
    config_.num_heads = 3;
    config_.num_kv_heads = 1;
    config_.head_dim = 8;
  }

  WeightVersion publish(int64_t version, uint64_t seed) {
    const ParameterLayout layout(config_);
    Parameters parameters(layout);
    init_parameters(config_, seed, parameters);
    const WeightManifest manifest =
        make_manifest(parameters, 0, version, numerics_class(), {}, GetParam());
    const auto name = publish_weights(folder_.path(), manifest, parameters);
    EXPECT_TRUE(name) << name.failure().message;
    return {version, manifest.root};
  }

  // `samples`: on a thread and a stream of its own.
  static std::optional<WeightStage::Staged> stage_version(WeightStage& stage,
                                                          const WeightVersion& version,
                                                          bool samples) {
    stage.ask(version, manifest_name(0, version.version));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      if (auto staged = stage.poll(samples)) return staged;
      std::this_thread::yield();
    }
    return std::nullopt;
  }

  ModelConfig config_;
  TemporaryDirectory folder_;
};

TEST_P(DeviceStage, WhatSamplesStaysWhileTheNextVersionIsStagedBesideIt) {
  const OwnedStream stream(kGpu);
  const int64_t before = Buffer::total_bytes();
  WeightStage stage(config_, GetParam(), stream.get(), {.fetch = weights_in(folder_.path())});
  EXPECT_EQ(Buffer::total_bytes() - before, WeightStage::bytes(config_, GetParam(), kGpu));
  std::shared_ptr<const PackedWeights> first;
  std::vector<float> embeddings(static_cast<size_t>(config_.vocab_size * config_.hidden_size));
  const auto read = [&](const PackedWeights& weights) {
    for (const PackedTensor& tensor : weights.tensors())
      if (tensor.name == kEmbeddingName)
        weights.read(stream.get(), tensor, 0,
                     {embeddings.data(), config_.vocab_size, config_.hidden_size});
    return embeddings;
  };
  std::vector<float> of_first;
  for (const int64_t number : {0, 1, 2}) {
    const WeightVersion version = publish(number, static_cast<uint64_t>(number) + 1);
    const auto staged = stage_version(stage, version, /*samples=*/number > 0);
    ASSERT_TRUE(staged);
    ASSERT_FALSE(staged->failure) << staged->failure->message;
    EXPECT_EQ(staged->version.root, version.root);
    if (first != nullptr) {
      EXPECT_EQ(read(*first), of_first) << "what samples was written over";
      first = nullptr;  // the engine lets it go with the switch
    }
    stage.order_switch(version);
    auto switched = stage.poll_switch(/*may_change=*/true);
    ASSERT_TRUE(switched && switched->weights);
    first = std::move(switched->weights);
    EXPECT_NE(read(*first), of_first);
    of_first = read(*first);
  }
}

// A byte of the device's memory that is not as it was packed.
TEST_P(DeviceStage, WhatTheDeviceHoldsIsProved) {
  const OwnedStream stream(kGpu);
  WeightStage stage(config_, GetParam(), stream.get(),
                    {.fetch = weights_in(folder_.path()), .on_packed = [&](const PackedWeights& w) {
                       const ConstDeviceBytes memory = w.memory();
                       std::byte byte{};
                       copy(stream.get(), {{}, &byte, 1}, memory.part(0, 1));
                       wait(stream.get());
                       byte ^= std::byte{1};
                       copy(stream.get(), {memory.device, const_cast<std::byte*>(memory.data), 1},
                            {{}, &byte, 1});
                       wait(stream.get());
                     }});
  const auto staged = stage_version(stage, publish(0, 1), /*samples=*/false);
  ASSERT_TRUE(staged && staged->failure);
  EXPECT_EQ(staged->cause, InstallCause::kDigest);
  EXPECT_NE(staged->failure->message.find("packed it has the digest"), std::string::npos)
      << staged->failure->message;
}

// Of any matrix, which the device digests itself.
TEST_P(DeviceStage, AFlippedBitOfAnyMatrixIsNamed) {
  const OwnedStream stream(kGpu);
  size_t flipped = 0;  // tensor in which a bit is wrong
  std::string name;
  WeightStage stage(config_, GetParam(), stream.get(),
                    {.fetch = weights_in(folder_.path()), .on_packed = [&](const PackedWeights& w) {
                       const PackedTensor tensor = w.tensors().at(flipped);
                       name = tensor.name;
                       PackedDigests digests(stream.get());
                       const bool is_matrix = tensor.cols > 0;
                       EXPECT_EQ(digests.add(0, tensor, 1000), is_matrix) << name;
                       if (!is_matrix) return;
                       // The last element of the last row.
                       const size_t width = static_cast<size_t>(size_of(GetParam()));
                       const size_t row = weight_bytes(GetParam(), 1, tensor.cols, kGpu);
                       const std::byte* at =
                           tensor.matrices.first.data +
                           static_cast<size_t>(tensor.first_row + tensor.rows - 1) * row +
                           static_cast<size_t>(tensor.cols) * width - 1;
                       std::byte byte{};
                       copy(stream.get(), {{}, &byte, 1}, {kGpu, at, 1});
                       wait(stream.get());
                       byte ^= std::byte{1};
                       copy(stream.get(), {kGpu, const_cast<std::byte*>(at), 1}, {{}, &byte, 1});
                       wait(stream.get());
                     }});
  const size_t tensors =
      PackedWeights(
          config_, GetParam(),
          Buffer(static_cast<size_t>(PackedWeights::bytes(config_, GetParam(), kGpu)), kGpu))
          .tensors()
          .size();
  int refused = 0;
  for (; flipped < tensors; ++flipped) {
    const auto number = static_cast<int64_t>(flipped);
    const auto staged = stage_version(stage, publish(number, flipped + 1), /*samples=*/false);
    ASSERT_TRUE(staged);
    if (!staged->failure) continue;
    ++refused;
    EXPECT_NE(staged->failure->message.find("tensor " + name + " block 0"), std::string::npos)
        << staged->failure->message;
  }
  // Two layers of q, k, v, o, gate, up and down; embeddings and head.
  EXPECT_EQ(refused, 16);
}

TEST_P(DeviceStage, TheClassNamesTheDeviceAndItsDtypes) {
  provide_cuda();
  const std::string architecture = backend_facts(DeviceKind::kCuda).devices.at(0).architecture;
  EXPECT_EQ(numerics_class(GetParam(), kGpu),
            "cuda-" + architecture +
                (GetParam() == Dtype::kBF16 ? "-wbf16-abf16-kvbf16" : "-w32-a32-kv32") +
                "-kshape-exact");
  EXPECT_EQ(hardware(kGpu), "cuda");
}

INSTANTIATE_TEST_SUITE_P(Weights, DeviceStage, ::testing::Values(Dtype::kF32, Dtype::kBF16),
                         [](const auto& test) {
                           return test.param == Dtype::kF32 ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace tailrace
