#include "core/model/reward_head.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/adapter_files.h"
#include "core/model/packed_weights.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_files.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

ModelConfig scorer(bool tied, Dtype dtype = Dtype::kF32) {
  ModelConfig policy = awkward_config(tied);
  policy.dtype = dtype;
  policy.eos_tokens = {7, 9};
  return reward_model_config(policy);
}

std::string refusal_of_labels(const std::vector<std::pair<std::string, Json>>& keys) {
  ScratchFolder folder;
  write_model_config(scorer(false), folder.path());
  Json json = Json::parse(read_text(folder.path() / "config.json"));
  json.erase("id2label");
  json.erase("label2id");
  for (const auto& [key, value] : keys) json[key] = value;
  write_text(folder.path() / "config.json", json.dump());
  return refusal_of([&] { read_model_config(folder.path()); });
}

TEST(RewardHead, DenseFamiliesHaveOne) {
  for (const auto& [name, architecture] : std::vector<std::pair<std::string, std::string>>{
           {"llama3-untied-f32", "LlamaForSequenceClassification"},
           {"qwen2-tied-f32", "Qwen2ForSequenceClassification"},
           {"qwen3-headdim-untied-bf16", "Qwen3ForSequenceClassification"},
           {"families/mistral-window", "MistralForSequenceClassification"},
           {"families/gemma3-pattern", "Gemma3TextForSequenceClassification"}}) {
    const ModelConfig policy = read_model_config(test_data("golden") / name);
    ModelConfig config = reward_model_config(policy);
    EXPECT_FALSE(is_reward_model(policy));
    EXPECT_TRUE(is_reward_model(config));
    EXPECT_EQ(config.architecture, architecture);
    ScratchFolder folder;
    write_model_config(config, folder.path());
    EXPECT_EQ(read_model_config(folder.path()), config);
    const Json json = Json::parse(read_text(folder.path() / "config.json"));
    EXPECT_EQ(json["id2label"], (Json{{"0", "LABEL_0"}}));
    EXPECT_EQ(json["label2id"], (Json{{"LABEL_0", 0}}));
    config.architecture = policy.architecture;
    EXPECT_EQ(config, policy);
  }
  EXPECT_THAT(
      refusal_of([] {
        reward_model_config(read_model_config(test_data("golden/families/qwen3moe-every-second")));
      }),
      HasSubstr("Qwen3MoeForCausalLM cannot be made a reward model; accepted: LlamaForCausalLM"));
}

TEST(RewardHead, OneOutputAloneIsRead) {
  EXPECT_EQ(refusal_of_labels({{"num_labels", 1}}), "accepted");
  EXPECT_EQ(refusal_of_labels({{"id2label", {{"0", "good"}}}}), "accepted");
  EXPECT_THAT(refusal_of_labels({}),
              HasSubstr("config.json: num_labels and id2label are missing, which means 2 labels; a "
                        "reward model has 1 output"));
  EXPECT_THAT(refusal_of_labels({{"num_labels", 3}}), HasSubstr("num_labels is 3; a reward model"));
  EXPECT_THAT(refusal_of_labels({{"id2label", {{"0", "a"}, {"1", "b"}}}}),
              HasSubstr(R"(id2label is {"0":"a","1":"b"}; a reward model)"));
}

TEST(RewardHead, WhoNeedsTheOtherKindIsTold) {
  ScratchFolder folder;
  write_model_config(scorer(false), folder.path());
  const std::string wanted =
      (folder.path() / "config.json").string() +
      ": LlamaForSequenceClassification is a reward model; it gives scores, not tokens. Name a "
      "model whose architecture ends in ForCausalLM.";
  EXPECT_EQ(refusal_of([&] { read_policy_config(folder.path()); }), wanted);
  EXPECT_EQ(refusal_of([&] { read_policy_folder(folder.path()); }), wanted);
  EXPECT_EQ(read_reward_config(folder.path()), scorer(false));
  write_model_config(awkward_config(false), folder.path());
  EXPECT_THAT(refusal_of([&] { read_reward_config(folder.path()); }),
              HasSubstr("LlamaForCausalLM is no reward model; it gives tokens, not scores."));
}

TEST(RewardHead, StandsInThePlaceOfAHeadAndBeginsWithZeros) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = scorer(tied);
    const ParameterLayout layout(config);
    EXPECT_EQ(layout.entries().back().name, kScoreName);
    EXPECT_EQ(layout.entries().back().shape, (std::vector<int64_t>{1, config.hidden_size}));
    EXPECT_EQ(head_name(config), kScoreName);
    Parameters parameters(layout);
    std::ranges::fill(parameters.vector(kScoreName), 5.0f);
    init_parameters(config, 1, parameters);
    EXPECT_EQ(std::ranges::count(parameters.vector(kScoreName), 0.0f), config.hidden_size);
  }
}

TEST(RewardHead, IsPackedAsAVectorOfFloats) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = scorer(tied);
    const ParameterLayout layout(config);
    Parameters parameters(layout);
    init_parameters(config, 2, parameters);
    for (size_t i = 0; float& value : parameters.vector(kScoreName))
      value = 1.0f + 1e-5f * static_cast<float>(i++);
    const PackedWeights packed(Stream{}, config, parameters, Dtype::kBF16);
    EXPECT_TRUE(std::ranges::equal(packed.score(), parameters.vector(kScoreName)));
    const std::vector<PackedTensor> tensors = packed.tensors();
    ASSERT_EQ(tensors.size(), layout.entries().size());
    EXPECT_EQ(tensors.back().name, kScoreName);
    std::vector<float> values(static_cast<size_t>(config.hidden_size));
    packed.read(Stream{}, tensors.back(), 0, Matrix(values.data(), config.hidden_size, 1));
    EXPECT_TRUE(std::ranges::equal(values, parameters.vector(kScoreName)));
  }
}

TEST(RewardHead, AFolderComesBackAsItWasWritten) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const ModelConfig config = scorer(dtype == Dtype::kBF16, dtype);
    const ParameterLayout layout(config);
    Parameters parameters(layout), read(layout), again(layout);
    init_parameters(config, 3, parameters);
    for (float& value : parameters.vector(kScoreName)) value = 0.1f;
    ScratchFolder folder, other;
    save_model(folder.path(), config, parameters);
    EXPECT_EQ(read_reward_config(folder.path()), config);
    check_parameters(folder.path(), config);
    load_parameters(folder.path(), config, read);
    for (const ParameterInfo& info : layout.entries()) {
      const bool rounds = dtype == Dtype::kBF16 && info.shape.size() > 1 && info.name != kScoreName;
      for (size_t i = 0; i < read.vector(info.name).size(); ++i) {
        const float value = parameters.vector(info.name)[i];
        ASSERT_EQ(read.vector(info.name)[i], rounds ? to_float(to_bf16(value)) : value)
            << info.name;
      }
    }
    // In the form in which it came.
    save_model(other.path(), config, read, read_model_form(folder.path()));
    EXPECT_EQ(read_text(other.path() / "config.json"), read_text(folder.path() / "config.json"));
    EXPECT_EQ(read_text(other.path() / "model.safetensors"),
              read_text(folder.path() / "model.safetensors"));
  }
}

TEST(RewardHead, IsMadeOfAPolicysFolderInItsForm) {
  for (const bool tied : {false, true}) {
    ModelConfig policy = awkward_config(tied);
    policy.eos_tokens = {7, 9};
    const ParameterLayout policy_layout(policy);
    Parameters weights(policy_layout);
    init_parameters(policy, 4, weights);
    ScratchFolder from, to;
    save_model(from.path(), policy, weights);
    // Keys that nobody here knows stay.
    Json json = Json::parse(read_text(from.path() / "config.json"));
    json["made_by"] = "hand";
    write_text(from.path() / "config.json", json.dump());
    write_text(from.path() / "generation_config.json",
               R"({"eos_token_id": 9, "pad_token_id": 11})");

    const ModelConfig config = reward_model_config(read_policy_config(from.path()));
    const ParameterLayout layout(config);
    Parameters reward(layout), read(layout);
    copy_reward_body(weights, reward);
    EXPECT_TRUE(std::ranges::equal(reward.vector(kFinalNormName), weights.vector(kFinalNormName)));
    save_model(to.path(), config, reward, reward_model_form(read_model_form(from.path()), config));
    EXPECT_EQ(read_reward_config(to.path()), config);
    EXPECT_EQ(read_padding(to.path()), 11);
    EXPECT_EQ(Json::parse(read_text(to.path() / "config.json"))["made_by"], "hand");
    load_parameters(to.path(), config, read);
    EXPECT_TRUE(std::ranges::equal(read.flat(), reward.flat()));
  }
}

TEST(RewardHead, ScoresTheTokenThatTransformersChooses) {
  const Tokens ids = {5, 1, 6, 1, 1};
  EXPECT_EQ(scored_token(ids, -1), 4u);
  EXPECT_EQ(scored_token(ids, 1), 2u);
  EXPECT_EQ(scored_token(Tokens{1, 1}, 1), 0u);
  const ModelConfig config = scorer(false);
  EXPECT_EQ(padding_of(config.bos_token, config.eos_tokens), 9);
  EXPECT_EQ(padding_of(3, config.eos_tokens), 3);
}

}  // namespace
}  // namespace tailrace
