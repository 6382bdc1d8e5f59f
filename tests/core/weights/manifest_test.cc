#include "core/weights/manifest.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/weights/digest.h"
#include "core/weights/proved_weights.h"
#include "core/weights/version_folder.h"
#include "kernels/base/isa.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 4100;  // 4100 x 128 floats: the embedding has three digest blocks
  config.hidden_size = 128;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  return config;
}

class WeightManifestTest : public testing::Test {
 protected:
  WeightManifestTest() : layout_(small_config()), weights_(layout_) {
    Rng rng(7);  // no two tensors alike, norms included
    for (const ParameterInfo& info : layout_.entries()) {
      for (float& value : weights_.vector(info.name))
        value = static_cast<float>(rng.uniform() - 0.5);
    }
  }

  fs::path publish(int64_t version) {
    manifest_ = make_manifest(weights_, 0, version, numerics_class());
    manifest_.parent = "00112233445566778899aabbccddeeff";
    manifest_.attempt = "a7";
    auto name = publish_weights(folder_, manifest_, weights_);
    EXPECT_TRUE(name) << name.failure().message;
    return folder_ / name.value();
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  ParameterLayout layout_;
  Parameters weights_;
  WeightManifest manifest_;
};

TEST_F(WeightManifestTest, ProvesWhatWasPublishedBitForBit) {
  weights_.vector("model.norm.weight")[3] = -0.0f;  // bits, not values
  const fs::path file = publish(5);
  auto proved = prove_weights(file, manifest_.root, layout_);
  ASSERT_TRUE(proved) << proved.failure().message;
  EXPECT_EQ(proved.value().root(), manifest_.root);
  const ProvedWeights moved = std::move(proved).value();  // the views stay where they were
  ASSERT_EQ(moved.tensors().size(), layout_.entries().size());
  for (const ParameterInfo& info : layout_.entries()) {
    const auto values = moved.values(info.name).floats(),
               expected = std::as_const(weights_).vector(info.name);
    ASSERT_EQ(values.size(), expected.size()) << info.name;
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size_bytes()), 0) << info.name;
  }
  EXPECT_EQ(make_manifest(weights_, 0, 9, "").root, manifest_.root)
      << "equal weights have equal roots";
}

// Nobody else makes one, and nobody has two of a mapping.
static_assert(!std::is_default_constructible_v<ProvedWeights>);
static_assert(!std::is_copy_constructible_v<ProvedWeights>);
static_assert(!std::is_constructible_v<ProvedWeights, WeightManifest,
                                       std::unique_ptr<const SafetensorsFile>>);

TEST_F(WeightManifestTest, SurvivesItsFile) {
  const fs::path file = publish(5);
  auto read = read_manifest(file);
  ASSERT_TRUE(read) << read.failure().message;
  EXPECT_EQ(to_json(read.value()), to_json(manifest_));
  EXPECT_EQ(read.value().version, 5);
  EXPECT_EQ(read.value().parent, manifest_.parent);
  EXPECT_EQ(read.value().attempt, "a7");
  EXPECT_EQ(read.value().master, read.value().root) << "float32 is published as it is trained";
  EXPECT_EQ(read.value().root.size(), 32u);
  EXPECT_EQ(read.value().tensors[0].blocks.size(), 3u);
  EXPECT_EQ(read.value().tensors[0].rows_per_block, 2048);
}

TEST_F(WeightManifestTest, EveryBitOfTheWeightsCounts) {
  const Digest before = make_manifest(weights_, 0, 1, "").root;
  for (const ParameterInfo& info : layout_.entries()) {
    auto values = weights_.vector(info.name);
    const float kept = values.back();
    // The smallest change that there is, in the last row of each tensor: blocks at the end are
    // shorter.
    values.back() = std::nextafter(kept, 2.0f * kept + 1.0f);
    EXPECT_NE(make_manifest(weights_, 0, 1, "").root, before) << info.name;
    values.back() = kept;
  }
  EXPECT_EQ(make_manifest(weights_, 0, 2, "x").root, before);
}

TEST_F(WeightManifestTest, RootCoversNamesDtypesAndShapes) {
  const Digest before = root_digest(manifest_.tensors = make_manifest(weights_, 0, 1, "").tensors);
  auto changed = [&](auto change) {
    auto tensors = manifest_.tensors;
    change(tensors);
    return root_digest(tensors) != before;
  };
  EXPECT_TRUE(changed([](auto& t) { t[1].name += "x"; }));
  EXPECT_TRUE(changed([](auto& t) { t[1].dtype = "BF16"; }));
  // The same bytes read as another matrix.
  EXPECT_TRUE(changed([](auto& t) { t[0].shape = {128, 4100}; }));
  EXPECT_TRUE(changed([](auto& t) { std::swap(t[0], t[1]); }));
  EXPECT_TRUE(changed([](auto& t) { t[0].blocks[1][5] ^= 1; }));
}

// Two masters may round to the same: what samples is one, what is trained is not.
TEST_F(WeightManifestTest, TheMasterIsOfWhatIsTrainedAndTheRootOfWhatSamples) {
  const auto made = [&] { return make_manifest(weights_, 0, 1, "", {}, Dtype::kBF16); };
  float& value = weights_.vector(kEmbeddingName)[7];
  value = 1.0f;
  const WeightManifest before = made();
  EXPECT_EQ(before.tensors[0].dtype, "BF16");
  const auto norm = std::ranges::find(before.tensors, kFinalNormName, &TensorManifest::name);
  EXPECT_EQ(norm->dtype, "F32") << "a vector";
  EXPECT_EQ(before.master, make_manifest(weights_, 0, 1, "").root);
  value = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(made().root, before.root);
  EXPECT_NE(made().master, before.master);
  value = 1.01f;
  EXPECT_NE(made().root, before.root);
  const auto name = publish_weights(folder_, made(), weights_);
  ASSERT_TRUE(name);
  const auto proved = prove_weights(folder_ / name.value(), made().root, layout_);
  ASSERT_TRUE(proved) << proved.failure().message;
  std::vector<float> values(static_cast<size_t>(layout_.at(kEmbeddingName).size));
  proved.value().values(kEmbeddingName).to_floats(values);
  EXPECT_EQ(values[7], to_float(to_bf16(1.01f)));
}

TEST(TensorSets, ExpertsAndAdaptersAreSetsOfTheirOwn) {
  const auto tensor = [](const std::string& name) {
    return TensorManifest{name, "F32", {1}, 1, {digest_of(name)}};
  };
  std::vector<TensorManifest> tensors = {tensor("model.layers.0.self_attn.q_proj.weight"),
                                         tensor("model.layers.0.mlp.experts.0.up_proj.weight"),
                                         tensor("model.layers.0.mlp.experts.1.up_proj.weight")};
  const auto before = tensor_sets(tensors);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[0].name, "experts");
  EXPECT_EQ(before[0].num_tensors, 2);
  tensors[0].blocks[0] = digest_of(std::string_view("other"));
  EXPECT_EQ(tensor_sets(tensors)[0].root, before[0].root) << "no expert has changed";
  EXPECT_NE(tensor_sets(tensors)[1].root, before[1].root);
  EXPECT_EQ(tensor_sets(std::vector{tensor("base_model.model.a.lora_A.weight")})[0].name,
            "adapter");
}

// One flipped byte in each block of each tensor: found and named.
TEST_F(WeightManifestTest, FindsAndNamesAFlippedByteInAnyBlock) {
  const fs::path file = publish(1);
  const std::string payload = read_file(folder_ / manifest_.payload).value();
  for (const TensorManifest& tensor : manifest_.tensors) {
    const auto values = std::as_bytes(weights_.vector(tensor.name));
    const auto begin =
        payload.find(std::string_view(reinterpret_cast<const char*>(values.data()), values.size()));
    ASSERT_NE(begin, std::string::npos) << tensor.name;
    for (size_t block = 0; block < tensor.blocks.size(); ++block) {
      const size_t block_bytes = values.size() / static_cast<size_t>(tensor.shape[0]) *
                                 static_cast<size_t>(tensor.rows_per_block);
      // The last byte of the block, which a count that is one short would miss.
      const size_t at = std::min(block * block_bytes + block_bytes, values.size()) - 1;
      std::string damaged = payload;
      damaged[begin + at] ^= 0x10;
      std::ofstream(folder_ / manifest_.payload, std::ios::binary) << damaged;
      auto proved = prove_weights(file, manifest_.root, layout_);
      ASSERT_FALSE(proved) << tensor.name << " block " << block;
      EXPECT_NE(
          proved.failure().message.find(fmt::format("tensor {} block {} ", tensor.name, block)),
          std::string::npos)
          << proved.failure().message;
    }
  }
}

TEST_F(WeightManifestTest, RefusesWeightsOtherThanTheWantedOnes) {
  const fs::path file = publish(1);
  const Digest wanted = manifest_.root;
  weights_.flat()[0] += 1;
  publish(1);
  EXPECT_FALSE(prove_weights(file, wanted, layout_));
  EXPECT_TRUE(prove_weights(file, manifest_.root, layout_));
}

// A file whose header no writer of ours has padded: its floats cannot be read where they lie.
TEST_F(WeightManifestTest, RefusesAPayloadWhoseFloatsAreNotAligned) {
  const fs::path file = publish(1);
  std::string payload = read_file(folder_ / manifest_.payload).value();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, payload.data(), sizeof header_bytes);
  payload.insert(sizeof header_bytes + header_bytes, " ");
  ++header_bytes;
  std::memcpy(payload.data(), &header_bytes, sizeof header_bytes);
  std::ofstream(folder_ / manifest_.payload, std::ios::binary) << payload;
  const auto proved = prove_weights(file, manifest_.root, layout_);
  ASSERT_FALSE(proved);
  EXPECT_NE(proved.failure().message.find("no multiple of 4"), std::string::npos)
      << proved.failure().message;
}

TEST_F(WeightManifestTest, RefusesDamagedFiles) {
  const fs::path file = publish(1);
  const std::string text = read_file(file).value();
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = text;
    damaged[static_cast<size_t>(rng.below(static_cast<int64_t>(text.size())))] =
        static_cast<char>(rng.below(256));
    if (i % 5 == 0)
      damaged.resize(static_cast<size_t>(rng.below(static_cast<int64_t>(text.size()))));
    std::ofstream(file, std::ios::binary) << damaged;
    auto proved = prove_weights(file, manifest_.root, layout_);
    // Damage to what does not matter (blanks, ids) is no harm: the digests decide.
    EXPECT_TRUE(proved || !proved.failure().message.empty());
  }
  std::ofstream(file, std::ios::binary) << text;
  fs::resize_file(folder_ / manifest_.payload, fs::file_size(folder_ / manifest_.payload) - 1);
  EXPECT_FALSE(prove_weights(file, manifest_.root, layout_));
  fs::remove(folder_ / manifest_.payload);
  EXPECT_FALSE(prove_weights(file, manifest_.root, layout_));
  EXPECT_FALSE(prove_weights(folder_ / "none.json", manifest_.root, layout_));
}

TEST_F(WeightManifestTest, RefusesAPayloadOutsideOfTheFolder) {
  const fs::path file = publish(1);
  manifest_.payload = "../elsewhere.safetensors";
  ASSERT_TRUE(write_file_atomic(file, to_json(manifest_)));
  EXPECT_FALSE(read_manifest(file));
}

TEST_F(WeightManifestTest, RefusesTheWeightsOfAnotherModel) {
  const fs::path file = publish(1);
  ModelConfig other = small_config();
  other.num_layers = 1;
  ParameterLayout layout(other);
  EXPECT_FALSE(prove_weights(file, manifest_.root, layout));
}

TEST_F(WeightManifestTest, AFolderThatCannotBeWrittenIsAFailureWithItsReason) {
  std::ofstream(folder_ / "file") << "x";
  manifest_ = make_manifest(weights_, 0, 1, "");
  auto name = publish_weights(folder_ / "file" / "weights", manifest_, weights_);
  ASSERT_FALSE(name);
  EXPECT_NE(name.failure().message.find("Not a directory"), std::string::npos)
      << name.failure().message;
}

TEST(NumericsClass, NamesInstructionSetAndDtypes) {
  EXPECT_TRUE(numerics_class().starts_with("cpu-"));
  EXPECT_TRUE(numerics_class().ends_with("-w32-a32-kv32-k1-exact"));
  // Floats have the same bits with pairs and without.
  EXPECT_EQ(numerics_class().find("bf16"), std::string::npos);
  const std::string bf16 = numerics_class(Dtype::kBF16);
  if (isa() == Isa::kAvx512Bf16) {
    EXPECT_EQ(bf16, "cpu-avx512_bf16-wbf16-abf16-kv32-k2-exact");
  } else {
    EXPECT_TRUE(bf16.ends_with("-wbf16-a32-kv32-k1-exact")) << bf16;
  }
  // And what the cache is of, where that is said.
  for (const Dtype weights : {Dtype::kF32, Dtype::kBF16}) {
    std::string expected = numerics_class(weights);
    EXPECT_EQ(numerics_class({weights, Dtype::kF32}), expected);
    expected.replace(expected.find("kv32"), 4, "kvbf16");
    EXPECT_EQ(numerics_class({weights, Dtype::kBF16}), expected);
  }
}

}  // namespace
}  // namespace tailrace
