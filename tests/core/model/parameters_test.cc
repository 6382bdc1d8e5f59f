#include "core/model/parameters.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

TEST(ParameterLayout, HasTheTensorsOfTheFile) {
  for (const char* name :
       {"golden/llama3-untied-f32", "models/stories260K", "golden/families/qwen3moe-layer0-dense",
        "golden/families/qwen3moe-every-second"}) {
    const ParameterLayout layout(read_model_config(test_data(name)));
    const SafetensorsFile file(test_data(name) / "model.safetensors");
    ASSERT_EQ(layout.entries().size(), file.tensors().size());
    for (const auto& [tensor, view] : file.tensors())
      EXPECT_EQ(layout.at(tensor).shape, view.shape) << tensor;
  }
}

TEST(ParameterLayout, SaysOfEveryTensorWhatItIsFor) {
  const ParameterLayout layout(awkward_config(/*tie_embeddings=*/false));
  const std::string prefix = "model.layers.1.";
  EXPECT_EQ(layout.at(kEmbeddingName).kind, ParameterKind::kEmbedding);
  EXPECT_EQ(layout.at(kHeadName).kind, ParameterKind::kMatrix);
  EXPECT_EQ(layout.at(kFinalNormName).kind, ParameterKind::kNorm);
  for (const char* name : {"q", "k", "v"})
    EXPECT_EQ(layout.at(prefix + "self_attn." + name + "_proj.weight").kind,
              ParameterKind::kMatrix);
  EXPECT_EQ(layout.at(prefix + "self_attn.o_proj.weight").kind, ParameterKind::kResidual);
  EXPECT_EQ(layout.at(prefix + "mlp.gate_proj.weight").kind, ParameterKind::kMatrix);
  EXPECT_EQ(layout.at(prefix + "mlp.down_proj.weight").kind, ParameterKind::kResidual);
  EXPECT_EQ(layout.at(prefix + "input_layernorm.weight").kind, ParameterKind::kNorm);
  EXPECT_EQ(layout.at(prefix + "post_attention_layernorm.weight").kind, ParameterKind::kNorm);
  const ParameterLayout rich(rich_config());
  for (const char* name : {"self_attn.q_proj.bias", "self_attn.v_proj.bias",
                           "self_attn.o_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"})
    EXPECT_EQ(rich.at(prefix + name).kind, ParameterKind::kBias) << name;
  EXPECT_EQ(rich.at(prefix + "self_attn.q_norm.weight").kind, ParameterKind::kNorm);
  EXPECT_EQ(rich.at(prefix + "self_attn.k_norm.weight").shape, std::vector<int64_t>{10});
}

TEST(ParameterLayout, TensorsDoNotOverlapAndGroupsHaveNoGap) {
  const ParameterLayout layout(rich_config());
  int64_t end = 0;
  for (const ParameterInfo& info : layout.entries()) {
    EXPECT_GE(info.offset, end) << info.name;
    // Gaps only round up to 16 floats, a line of the cache.
    EXPECT_LT(info.offset, end + 16) << info.name;
    const bool follows = info.name.find("k_proj") != std::string::npos ||
                         info.name.find("v_proj") != std::string::npos ||
                         info.name.find("up_proj") != std::string::npos;
    if (follows) {
      EXPECT_EQ(info.offset, end) << info.name;
    } else {
      EXPECT_EQ(info.offset % 16, 0) << info.name;
    }
    end = info.offset + info.size;
  }
  EXPECT_GE(layout.size(), end);
  EXPECT_EQ(layout.size() % 16, 0);
}

TEST(ParameterLayout, ALayersFusedMatricesAreTheNamedTensors) {
  const ModelConfig config = awkward_config(true);
  const ParameterLayout layout(config);
  Parameters parameters(layout);
  init_parameters(config, 1, parameters);
  const LayerTensors<float> layer = layer_tensors(config, parameters, 1);
  const std::string prefix = "model.layers.1.";
  // 6 query heads and 2 + 2 heads of 10 rows.
  EXPECT_EQ(layer.qkv.rows, 100);
  EXPECT_EQ(layer.qkv.row(60), parameters.matrix(prefix + "self_attn.k_proj.weight").data);
  EXPECT_EQ(layer.qkv.row(80), parameters.matrix(prefix + "self_attn.v_proj.weight").data);
  EXPECT_EQ(layer.gate_up.row(52), parameters.matrix(prefix + "mlp.up_proj.weight").data);
  EXPECT_EQ(layer.down.data, parameters.matrix(prefix + "mlp.down_proj.weight").data);
}

// One by one or in one tensor: the same numbers in the same places.
TEST(ParameterLayout, HasExpertsByEitherLayoutOfTheFiles) {
  ModelConfig config = sparse_config();
  const ParameterLayout apart(config);
  config.fused_experts = true;
  const ParameterLayout fused(config);
  const std::string prefix = "model.layers.2.mlp.";
  EXPECT_EQ(fused.at(prefix + "experts.gate_up_proj").shape, (std::vector<int64_t>{7, 42, 40}));
  EXPECT_EQ(fused.at(prefix + "experts.down_proj").shape, (std::vector<int64_t>{7, 40, 21}));
  EXPECT_EQ(apart.at(prefix + "experts.6.gate_proj.weight").shape, (std::vector<int64_t>{21, 40}));
  EXPECT_EQ(apart.at(prefix + "experts.6.down_proj.weight").shape, (std::vector<int64_t>{40, 21}));
  for (const ParameterLayout* layout : {&apart, &fused}) {
    EXPECT_EQ(layout->at(prefix + "gate.weight").shape, (std::vector<int64_t>{7, 40}));
    EXPECT_EQ(layout->at(prefix + "gate.weight").kind, ParameterKind::kMatrix);
    EXPECT_EQ(layout->at(prefix + "gate.e_score_correction_bias").kind, ParameterKind::kChoice);
    // Of each of 2 sparse layers, 4 of 7 experts are idle.
    EXPECT_EQ(layout->num_parameters() - layout->num_active_parameters(), 2 * 4 * 3 * 21 * 40);
  }
  EXPECT_EQ(apart.at(prefix + "experts.6.down_proj.weight").kind, ParameterKind::kResidual);
  EXPECT_EQ(fused.at(prefix + "experts.down_proj").kind, ParameterKind::kResidual);
  EXPECT_EQ(apart.size(), fused.size());
  EXPECT_EQ(apart.num_parameters(), fused.num_parameters());

  Parameters parameters(apart);
  init_parameters(sparse_config(), 1, parameters);
  const LayerTensors<float> layer = layer_tensors(sparse_config(), parameters, 2);
  for (const std::string e : {"0", "3", "6"}) {
    const int64_t index = std::stoll(e);
    EXPECT_EQ(layer.expert_gate_up.at(index).data,
              parameters.matrix(prefix + "experts." + e + ".gate_proj.weight").data);
    EXPECT_EQ(layer.expert_gate_up.at(index).row(21),
              parameters.matrix(prefix + "experts." + e + ".up_proj.weight").data);
    EXPECT_EQ(layer.expert_down.at(index).data,
              parameters.matrix(prefix + "experts." + e + ".down_proj.weight").data);
  }
  EXPECT_EQ(apart.at("model.layers.1.mlp.up_proj.weight").shape, (std::vector<int64_t>{52, 40}));
}

double deviation(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(InitParameters, DependsOnSeedAndNameOnly) {
  const ModelConfig tied = awkward_config(true), untied = awkward_config(false);
  const ParameterLayout tied_layout(tied), untied_layout(untied);
  Parameters a(tied_layout), b(tied_layout), c(tied_layout), d(untied_layout);
  init_parameters(tied, 7, a);
  init_parameters(tied, 7, b);
  init_parameters(tied, 8, c);
  init_parameters(untied, 7, d);
  EXPECT_EQ(std::memcmp(a.flat().data(), b.flat().data(), a.flat().size_bytes()), 0);
  const std::string name = "model.layers.2.mlp.down_proj.weight";
  EXPECT_NE(a.vector(name)[0], c.vector(name)[0]);
  EXPECT_NE(a.vector(name)[0], a.vector("model.layers.1.mlp.down_proj.weight")[0]);
  EXPECT_EQ(std::memcmp(a.vector(name).data(), d.vector(name).data(), a.vector(name).size_bytes()),
            0);
}

TEST(InitParameters, HasTheVariancesOfTheHeader) {
  // A sample deviation of n normals is off by about 1 / sqrt(2 n); n >= 2000 here, five times that
  // is 8 %.
  constexpr double kBound = 0.08;
  for (const bool tie : {false, true}) {
    const ModelConfig config = awkward_config(tie);
    const ParameterLayout layout(config);
    Parameters parameters(layout);
    init_parameters(config, 3, parameters);
    auto ratio = [&](std::string_view name, double want) {
      return deviation(parameters.vector(name)) / want;
    };
    EXPECT_NEAR(ratio(kEmbeddingName, tie ? std::sqrt(1 / 40.0) : 1.0), 1, kBound);
    if (!tie) {
      EXPECT_NEAR(ratio(kHeadName, std::sqrt(1 / 40.0)), 1, kBound);
    }
    EXPECT_NEAR(ratio("model.layers.0.self_attn.q_proj.weight", std::sqrt(1 / 40.0)), 1, kBound);
    EXPECT_NEAR(ratio("model.layers.0.mlp.up_proj.weight", std::sqrt(1 / 40.0)), 1, kBound);
    // Fan-in 60, and divided by 2 * layers = 6 for what is added to the residual stream.
    EXPECT_NEAR(ratio("model.layers.0.self_attn.o_proj.weight", std::sqrt(1 / 60.0 / 6)), 1,
                kBound);
    EXPECT_NEAR(ratio("model.layers.0.mlp.down_proj.weight", std::sqrt(1 / 52.0 / 6)), 1, kBound);
    for (const float weight : parameters.vector(kFinalNormName)) EXPECT_EQ(weight, 1);
  }
}

TEST(SaveModel, LoadsBackBitForBit) {
  for (const bool tie : {false, true}) {
    const ModelConfig config = awkward_config(tie);
    const ParameterLayout layout(config);
    Parameters saved(layout), loaded(layout);
    init_parameters(config, 5, saved);
    ScratchFolder folder;
    save_model(folder.path() / "made" / "here", config, saved);
    load_parameters(folder.path() / "made" / "here",
                    read_model_config(folder.path() / "made" / "here"), loaded);
    EXPECT_EQ(std::memcmp(saved.flat().data(), loaded.flat().data(), saved.flat().size_bytes()), 0);
    EXPECT_EQ(SafetensorsFile(folder.path() / "made" / "here" / "model.safetensors")
                  .metadata()
                  .at("format"),
              "pt");
  }
}

// A model is written as it came, and either layout is read as what it is.
TEST(SaveModel, AModelInShardsStaysInShards) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    ModelConfig config = awkward_config(/*tie_embeddings=*/false);
    config.dtype = dtype;
    config.shard_bytes = 24'000;  // more than any tensor has
    const ParameterLayout layout(config);
    Parameters parameters(layout), back(layout), single(layout);
    init_parameters(config, 7, parameters);
    const ScratchFolder folder, other;
    save_model(folder.path(), config, parameters);
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "model.safetensors"));

    const auto index =
        nlohmann::json::parse(read_text(folder.path() / "model.safetensors.index.json"));
    int64_t total = 0;
    std::set<std::string> files;
    for (const auto& [name, file] : index["weight_map"].items()) {
      const auto path = folder.path() / file.get<std::string>();
      const SafetensorsFile shard(path);
      ASSERT_TRUE(shard.tensors().contains(name)) << name;
      total += std::ssize(shard.tensors().find(name)->second.data);
      files.insert(file);
    }
    EXPECT_EQ(index["weight_map"].size(), layout.entries().size());
    EXPECT_EQ(index["metadata"]["total_size"], total);
    ASSERT_GT(files.size(), 2u);
    for (const std::string& file : files) {
      const SafetensorsFile shard(folder.path() / file);
      int64_t bytes = 0;
      for (const auto& [name, view] : shard.tensors()) bytes += std::ssize(view.data);
      EXPECT_LE(bytes, config.shard_bytes) << file;
      EXPECT_TRUE(file.ends_with(fmt::format("-of-{:05}.safetensors", files.size()))) << file;
    }

    // Read and written again it is in shards once more, with the same values.
    const ModelConfig found = read_model_config(folder.path());
    EXPECT_GT(found.shard_bytes, 0);
    load_parameters(folder.path(), found, back);
    config.shard_bytes = 0;
    save_model(other.path(), config, parameters);
    EXPECT_EQ(read_model_config(other.path()).shard_bytes, 0);
    load_parameters(other.path(), config, single);
    EXPECT_TRUE(std::ranges::equal(back.flat(), single.flat()));
    const ScratchFolder again;
    save_model(again.path(), found, back);
    EXPECT_FALSE(std::filesystem::exists(again.path() / "model.safetensors"));
    EXPECT_EQ(nlohmann::json::parse(read_text(
                  again.path() / "model.safetensors.index.json"))["metadata"]["total_size"],
              total);
  }
}

TEST(SaveModel, KeepsTheLayoutOfTheExperts) {
  for (const bool fused : {false, true}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      ModelConfig config = sparse_config();
      config.fused_experts = fused;
      config.dtype = dtype;
      const ParameterLayout layout(config);
      Parameters saved(layout), loaded(layout);
      init_parameters(config, 5, saved);
      for (const ParameterInfo& info : layout.entries()) {
        if (info.shape.size() == 1) continue;
        for (float& weight : saved.vector(info.name)) weight = to_float(to_bf16(weight));
      }
      saved.vector("model.layers.2.mlp.gate.e_score_correction_bias")[3] = 0.123f;
      ScratchFolder folder;
      save_model(folder.path(), config, saved);
      const ModelConfig read = read_model_config(folder.path());
      EXPECT_EQ(read, config);
      load_parameters(folder.path(), read, loaded);
      EXPECT_TRUE(std::ranges::equal(saved.flat(), loaded.flat()));
      const SafetensorsFile file(folder.path() / "model.safetensors");
      const auto& down = file.tensors().at(fused ? "model.layers.0.mlp.experts.down_proj"
                                                 : "model.layers.0.mlp.experts.2.down_proj.weight");
      EXPECT_EQ(down.dtype, dtype);
      EXPECT_EQ(down.shape,
                fused ? (std::vector<int64_t>{7, 40, 21}) : (std::vector<int64_t>{40, 21}));
    }
  }
}

TEST(SaveModel, TheFusedExpertsAreThoseOfTheGolden) {
  const auto folder = test_data("golden/families/qwen3moe-layer0-dense");
  const ModelConfig apart = read_model_config(folder);
  const ParameterLayout layout(apart);
  Parameters parameters(layout);
  load_parameters(folder, apart, parameters);
  // As transformers 5 has them: of each expert the gate's rows, then those of up.
  std::vector<float> want;
  for (int e = 0; e < 8; ++e) {
    for (const char* part : {"gate_proj", "up_proj"}) {
      const auto values =
          parameters.vector(fmt::format("model.layers.1.mlp.experts.{}.{}.weight", e, part));
      want.insert(want.end(), values.begin(), values.end());
    }
  }
  ModelConfig fused = apart;
  fused.fused_experts = true;
  const ParameterLayout fused_layout(fused);
  Parameters same(fused_layout);
  std::ranges::copy(parameters.flat(), same.flat().begin());
  ScratchFolder saved;
  save_model(saved.path(), fused, same);
  const SafetensorsFile file(saved.path() / "model.safetensors");
  std::vector<float> got(want.size());
  to_float(file.tensors().at("model.layers.1.mlp.experts.gate_up_proj"), got);
  EXPECT_EQ(got, want);
}

// A bias of choices that a run begins with is not in the files that it begins from.
TEST(SaveModel, AChoiceBiasThatTheFilesLackIsZero) {
  ModelConfig config = sparse_config();
  config.choice_bias = false;
  const ParameterLayout layout(config);
  Parameters saved(layout);
  init_parameters(config, 5, saved);
  ScratchFolder folder;
  save_model(folder.path(), config, saved);
  EXPECT_FALSE(read_model_config(folder.path()).choice_bias);
  config.choice_bias = true;
  const ParameterLayout with(config);
  Parameters loaded(with);
  for (float& value : loaded.flat()) value = 7;
  load_parameters(folder.path(), config, loaded);
  for (const float bias : loaded.vector("model.layers.0.mlp.gate.e_score_correction_bias"))
    EXPECT_EQ(bias, 0);
}

// In bf16 nothing is lost of what products read, and the config says so.
TEST(SaveModel, InBfloatKeepsWhatProductsRead) {
  ModelConfig config = awkward_config(false);
  config.dtype = Dtype::kBF16;
  const ParameterLayout layout(config);
  Parameters saved(layout), loaded(layout);
  init_parameters(config, 5, saved);
  for (float& weight : saved.vector(kFinalNormName)) weight += 1e-5f;  // finer than bf16
  ScratchFolder folder;
  save_model(folder.path(), config, saved);
  const ModelConfig read = read_model_config(folder.path());
  EXPECT_EQ(read.dtype, Dtype::kBF16);
  load_parameters(folder.path(), read, loaded);
  for (const ParameterInfo& info : layout.entries()) {
    const auto before = saved.vector(info.name), after = loaded.vector(info.name);
    for (size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(after[i], info.shape.size() == 2 ? to_float(to_bf16(before[i])) : before[i])
          << info.name;
  }
}

// A saved model whose tensors a test may change before they are written again.
class LoadParameters : public ::testing::Test {
 protected:
  struct Tensor {
    Dtype dtype = Dtype::kF32;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
  };

  LoadParameters() : config(awkward_config(true)), layout(config), parameters(layout) {
    init_parameters(config, 9, parameters);
    for (const ParameterInfo& info : layout.entries()) {
      const auto bytes = std::as_bytes(parameters.vector(info.name));
      tensors[info.name] = {Dtype::kF32, info.shape, {bytes.begin(), bytes.end()}};
    }
  }

  void write(const std::string& file, const std::function<bool(const std::string&)>& wanted) {
    std::vector<NamedTensor> out;
    for (const auto& [name, tensor] : tensors) {
      if (wanted(name)) out.push_back({name, {tensor.dtype, tensor.shape, tensor.data}});
    }
    write_safetensors(folder.path() / file, out);
  }
  void write() {
    write("model.safetensors", [](const std::string&) { return true; });
  }

  std::string refusal() {
    Parameters into(layout);
    // check_parameters() says before a run what load_parameters() would say in it: the same.
    const std::string checked = outcome([this] { check_parameters(folder.path(), config); });
    EXPECT_EQ(outcome([&] { load_parameters(folder.path(), config, into); }), checked);
    return checked;
  }
  static std::string outcome(const std::function<void()>& read) {
    try {
      read();
      return "accepted";
    } catch (const UserError& e) {
      return e.what();
    }
  }
  void expect_refusal(const std::string& message) {
    const std::string got = refusal();
    EXPECT_NE(got.find(message), std::string::npos) << got;
  }

  const std::string norm = "model.layers.1.input_layernorm.weight";
  ModelConfig config;
  ParameterLayout layout;
  Parameters parameters;
  std::map<std::string, Tensor> tensors;
  ScratchFolder folder;
};

TEST_F(LoadParameters, ReadsHalfPrecisionExactly) {
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000};  // 1, -2, 2^-24, 65504, -0
  const uint16_t bfloats[] = {0x3F80, 0xC000, 0x0001, 0x7F7F, 0x8000};
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    Tensor& tensor = tensors[norm];
    tensor.dtype = dtype;
    tensor.data.assign(40 * 2, std::byte{0});
    std::memcpy(tensor.data.data(), dtype == Dtype::kF16 ? halves : bfloats, sizeof halves);
    write();
    Parameters into(layout);
    load_parameters(folder.path(), config, into);
    const std::span<const float> got = into.vector(norm);
    EXPECT_EQ(got[0], 1.0f);
    EXPECT_EQ(got[1], -2.0f);
    // Denormals, which a conversion by flushing would lose.
    EXPECT_EQ(got[2], dtype == Dtype::kF16 ? 0x1p-24f : 0x1p-133f);
    EXPECT_EQ(got[3], dtype == Dtype::kF16 ? 65504.0f : 0x1.FEp127f);
    EXPECT_TRUE(got[4] == 0 && std::signbit(got[4]));
    EXPECT_EQ(got[5], 0.0f);
  }
}

TEST_F(LoadParameters, ReadsShards) {
  auto first = [](const std::string& name) { return name.find("layers.1") != std::string::npos; };
  write("a.safetensors", first);
  write("b.safetensors", [&](const std::string& name) { return !first(name); });
  nlohmann::json index;
  for (const auto& [name, tensor] : tensors)
    index["weight_map"][name] = first(name) ? "a.safetensors" : "b.safetensors";
  write_text(folder.path() / "model.safetensors.index.json", index.dump());
  Parameters into(layout);
  load_parameters(folder.path(), config, into);
  EXPECT_EQ(std::memcmp(into.flat().data(), parameters.flat().data(), into.flat().size_bytes()), 0);

  index["weight_map"][norm] = "b.safetensors";
  write_text(folder.path() / "model.safetensors.index.json", index.dump());
  expect_refusal("a.safetensors: tensor '" + norm +
                 "' is here; model.safetensors.index.json says that it is in b.safetensors");
  index["weight_map"][norm] = "../a.safetensors";
  write_text(folder.path() / "model.safetensors.index.json", index.dump());
  expect_refusal("must be a file name in the same folder");
  using namespace std::string_literals;
  index["weight_map"][norm] = "a.safetensors\0"s;
  write_text(folder.path() / "model.safetensors.index.json", index.dump());
  expect_refusal("the file \"a.safetensors\\u0000\"; it must be a file name in the same folder");
  write_text(folder.path() / "model.safetensors.index.json", "{}");
  expect_refusal("no object weight_map");
  write_text(folder.path() / "model.safetensors.index.json", "{");
  expect_refusal("not JSON");
}

TEST_F(LoadParameters, NamesEveryShardThatIsMissing) {
  write("a.safetensors", [](const std::string&) { return true; });
  nlohmann::json index;
  int number = 0;
  for (const auto& [name, tensor] : tensors)
    index["weight_map"][name] =
        std::array{"a", "b", "c"}.at(number++ % 3) + std::string(".safetensors");
  write_text(folder.path() / "model.safetensors.index.json", index.dump());
  expect_refusal(
      "model.safetensors.index.json: the download is incomplete: 2 of the 3 files that it names "
      "are missing: b.safetensors, c.safetensors.");
  std::filesystem::remove(folder.path() / "model.safetensors.index.json");
  std::filesystem::rename(folder.path() / "a.safetensors",
                          folder.path() / "model-00001-of-00002.safetensors");
  expect_refusal(
      "model-00001-of-00002.safetensors is a shard, and the index of the shards is "
      "missing: the download is incomplete.");
}

TEST_F(LoadParameters, NamesTheTensorThatIsMissing) {
  tensors.erase(norm);
  write();
  expect_refusal("model.safetensors: tensor '" + norm +
                 "' is missing; the config asks for it. There are ");
  expect_refusal("; did you mean 'model.layers.0.input_layernorm.weight'?");
}

TEST_F(LoadParameters, NamesTheTensorThatDoesNotBelong) {
  tensors["model.layers.0.self_attn.q_proj.bias"] = {Dtype::kF32, {1}, std::vector<std::byte>(4)};
  write();
  expect_refusal("tensor 'model.layers.0.self_attn.q_proj.bias' is unknown to a LlamaForCausalLM");
}

TEST_F(LoadParameters, IgnoresStoredFrequenciesAndTheHeadOfATiedModel) {
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      Dtype::kF32, {1}, std::vector<std::byte>(4)};
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  write();
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(LoadParameters, TakesTiedEmbeddingsFromTheHeadWhereTheFileHasNoOther) {
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  tensors.erase("model.embed_tokens.weight");
  write();
  Parameters loaded(layout);
  load_parameters(folder.path(), config, loaded);
  EXPECT_TRUE(std::ranges::equal(loaded.flat(), parameters.flat()));
}

TEST_F(LoadParameters, NamesTheShapeThatIsWrong) {
  tensors[norm].shape = {2, 20};
  write();
  expect_refusal("tensor '" + norm + "' has the shape [2, 20]; the config asks for [40]");
}

TEST_F(LoadParameters, RefusesIntegers) {
  tensors[norm].dtype = Dtype::kI32;
  write();
  expect_refusal("tensor '" + norm + "' is not of a floating dtype");
}

TEST_F(LoadParameters, NamesTheFirstElementThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const size_t place : {size_t{0}, size_t{39}}) {
      std::memset(tensors[norm].data.data(), 0, tensors[norm].data.size());
      // Where `place` is 0 there are two, and the first is named.
      std::memcpy(tensors[norm].data.data() + 4 * 39, &bad, 4);
      std::memcpy(tensors[norm].data.data() + 4 * place, &bad, 4);
      write();
      expect_refusal(fmt::format("tensor '{}' is {} at element {}", norm, bad, place));
    }
  }
}

TEST(CheckParameters, LooksAtEveryPieceOfALargeTensor) {
  ModelConfig config = awkward_config(/*tie_embeddings=*/true);
  config.vocab_size = 8000;  // 320,000 elements: a check takes them in two pieces
  const ParameterLayout layout(config);
  Parameters parameters(layout);
  init_parameters(config, 3, parameters);
  const ScratchFolder folder;
  save_model(folder.path(), config, parameters);
  check_parameters(folder.path(), config);
  parameters.vector(kEmbeddingName).back() = INFINITY;
  save_model(folder.path(), config, parameters);
  try {
    check_parameters(folder.path(), config);
    ADD_FAILURE() << "it was not seen";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("is inf at element 319999"), std::string::npos)
        << error.what();
  }
}

TEST_F(LoadParameters, SaysWhatAFolderWithoutWeightsLacks) {
  expect_refusal("found neither model.safetensors nor model.safetensors.index.json");
  expect_refusal("The folder has nothing");
  write_text(folder.path() / "pytorch_model.bin", "");
  expect_refusal("The folder has pytorch_model.bin");
}

TEST_F(LoadParameters, SaysThatAFileWasCut) {
  write();
  const auto path = folder.path() / "model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  expect_refusal("it was cut off");
}

}  // namespace
}  // namespace tailrace
