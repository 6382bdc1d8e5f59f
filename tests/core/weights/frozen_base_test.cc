// The frozen weights beside an adapter: what is read of their files is what is packed and named.

#include "core/weights/frozen_base.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/parameter_files.h"
#include "core/weights/manifest.h"
#include "core/weights/proved_weights.h"
#include "core/weights/version_folder.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

ModelConfig base_config() {
  ModelConfig config;
  config.vocab_size = 70;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.max_positions = 32;
  config.lora = {.rank = 2, .alpha = 4, .targets = {LoraTarget::kQ, LoraTarget::kV}, .base = ""};
  return config;
}

class FrozenBaseTest : public ::testing::TestWithParam<Dtype> {
 protected:
  FrozenBaseTest() : layout_(config_), parameters_(layout_) {
    init_parameters(config_, /*seed=*/3, parameters_);
    save();
  }
  void save() {
    ModelConfig written = config_;
    written.lora = {};
    written.dtype = GetParam();
    save_model(folder_.path(), written, parameters_);
  }
  FrozenBase load() { return load_frozen_base(Stream{}, folder_.path(), config_, GetParam()); }

  const ModelConfig config_ = base_config();
  const ParameterLayout layout_;
  Parameters parameters_;
  TemporaryDirectory folder_;
};

TEST_P(FrozenBaseTest, HasTheRootAndTheBitsOfAVersionOfTheSameFiles) {
  const FrozenBase base = load();
  Parameters loaded(layout_);
  load_parameters(folder_.path(), config_, loaded);
  EXPECT_EQ(base.root, make_manifest(loaded, 0, 0, numerics_class()).root);
  const PackedWeights whole(Stream{}, config_, loaded, GetParam());
  const auto expected = whole.memory(), found = base.weights->memory();
  ASSERT_EQ(found.size, expected.size);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.data), found.size),
            std::string(reinterpret_cast<const char*>(expected.data), expected.size));
}

TEST_P(FrozenBaseTest, AnotherValueIsAnotherRoot) {
  const Digest before = load().root;
  parameters_.vector("model.norm.weight")[5] += 0.5f;
  save();
  EXPECT_NE(load().root, before);
}

TEST_P(FrozenBaseTest, FilesThatLackATensorAreNamed) {
  std::filesystem::resize_file(folder_ / "model.safetensors", 900);
  EXPECT_THROW(load(), UserError);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FrozenBaseTest, ::testing::Values(Dtype::kF32, Dtype::kBF16));

// The base is part of what a version of an adapter is.
TEST(AdapterVersion, NamesItsBaseAndProvesIt) {
  const ModelConfig config = base_config();
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  Parameters adapter(layout);
  init_parameters(config, /*seed=*/4, adapter);
  const Digest base = "0123456789abcdef0123456789abcdef";
  const WeightManifest manifest = make_manifest(adapter, 0, 3, numerics_class(), base);
  EXPECT_NE(manifest.root, make_manifest(adapter, 0, 3, numerics_class()).root);
  const TemporaryDirectory folder;
  const auto name = publish_weights(folder.path(), manifest, adapter);
  ASSERT_TRUE(name);
  const auto read = read_manifest(folder / name.value());
  ASSERT_TRUE(read);
  EXPECT_EQ(read.value().base, base);
  const auto proved = prove_weights(folder / name.value(), manifest.root, layout);
  ASSERT_TRUE(proved) << proved.failure().message;
  EXPECT_EQ(proved.value().base(), base);
  // A manifest that says another base does not have the root that was asked for.
  WeightManifest changed = manifest;
  changed.base[0] = 'f';
  std::ofstream(folder / name.value()) << to_json(changed);
  EXPECT_FALSE(prove_weights(folder / name.value(), manifest.root, layout));
}

}  // namespace
}  // namespace tailrace
