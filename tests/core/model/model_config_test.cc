#include "core/model/model_config.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/compute.h"
#include "core/model/parameters.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;

Json llama_json() {
  return Json::parse(read_text(test_data("golden/llama3-untied-f32/config.json")));
}

// What reading config.json with this text says, or "accepted".
std::string refusal_of_config(const std::string& text) {
  ScratchFolder folder;
  write_text(folder.path() / "config.json", text);
  try {
    read_model_config(folder.path());
    return "accepted";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("config.json"), std::string::npos) << e.what();
    return e.what();
  }
}

TEST(ModelConfig, ReadsAHuggingFaceFile) {
  const ModelConfig config = read_model_config(test_data("golden/llama3-untied-f32"));
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 144);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 257);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_EQ(config.eos_tokens, std::vector<int64_t>{2});
  EXPECT_EQ(ParameterLayout(config).num_parameters(), 113088);  // as golden.json says
}

TEST(ModelConfig, FillsInTheDefaultsOfTransformers) {
  Json json = llama_json();
  for (const char* key :
       {"head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "bos_token_id",
        "tie_word_embeddings", "rope_scaling", "architectures", "torch_dtype"}) {
    json.erase(key);
  }
  json["eos_token_id"] = {5, 6};
  ScratchFolder folder;
  write_text(folder.path() / "config.json", json.dump());
  const ModelConfig config = read_model_config(folder.path());
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.bos_token, -1);
  EXPECT_EQ(config.eos_tokens, (std::vector<int64_t>{5, 6}));
  EXPECT_FALSE(config.tie_embeddings);
}

TEST(ModelConfig, ReadsTheRopeParametersOfTransformers5) {
  Json json = llama_json();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_theta", 777.0}, {"rope_type", "default"}};
  ScratchFolder folder;
  write_text(folder.path() / "config.json", json.dump());
  EXPECT_EQ(read_model_config(folder.path()).rope_theta, 777);
}

TEST(ModelConfig, WhatIsWrittenReadsBack) {
  for (const bool tied : {false, true}) {
    ModelConfig config = awkward_config(tied);
    config.rope_theta = 123456.75;
    config.rms_norm_eps = 3e-6;
    config.bos_token = 4;
    ScratchFolder folder;
    write_model_config(config, folder.path());
    const ModelConfig read = read_model_config(folder.path());
    EXPECT_EQ(read, config);
  }
}

// What each family adds is written as its files have it.
TEST(ModelConfig, EveryFamilyIsWrittenAndReadBack) {
  for (const char* name :
       {"llama3-ropescaled-tied-bf16", "qwen2-tied-f32", "qwen3-headdim-untied-bf16",
        "families/llama-biases-linear", "families/mistral-window",
        "families/qwen2-yarn-upper-windows", "families/qwen3-biases",
        "families/qwen3moe-layer0-dense", "families/qwen3moe-every-second",
        "families/gemma3-pattern", "families/gemma3-untied-linear"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = read_model_config(test_data("golden") / name);
    ScratchFolder folder;
    write_model_config(config, folder.path());
    EXPECT_EQ(read_model_config(folder.path()), config);
    // Under the keys of the family.
    const Json before = Json::parse(read_text(test_data("golden") / name / "config.json"));
    const Json after = Json::parse(read_text(folder.path() / "config.json"));
    std::vector<std::string> keys = {"model_type",          "attention_bias",        "mlp_bias",
                                     "hidden_activation",   "query_pre_attn_scalar", "rope_theta",
                                     "rope_local_base_freq"};
    if (!config.windows.empty())
      keys.insert(keys.end(), {"sliding_window", "use_sliding_window", "layer_types"});
    for (const std::string& key : keys) {
      if (before.contains(key)) {
        EXPECT_EQ(after.value(key, Json()), before[key]) << key;
      }
    }
  }
}

ModelConfig read_json_config(const Json& json) {
  ScratchFolder folder;
  write_text(folder.path() / "config.json", json.dump());
  return read_model_config(folder.path());
}

TEST(ModelConfig, WindowsAreThoseOfTheFamily) {
  Json mistral = Json::parse(read_text(test_data("golden/families/mistral-window/config.json")));
  EXPECT_EQ(read_json_config(mistral).windows, (std::vector<int64_t>{7, 7, 7}));
  mistral["sliding_window"] = nullptr;
  EXPECT_TRUE(read_json_config(mistral).windows.empty());
  mistral.erase("sliding_window");  // transformers' default
  EXPECT_EQ(read_json_config(mistral).windows, (std::vector<int64_t>{4096, 4096, 4096}));

  // Refused before as many are listed.
  mistral["num_hidden_layers"] = int64_t{1} << 50;
  EXPECT_NE(refusal_of_config(mistral.dump()).find("num_hidden_layers is 1125899906842624"),
            std::string::npos);
  mistral["num_hidden_layers"] = 3;
  mistral["sliding_window"] = -7;
  EXPECT_NE(refusal_of_config(mistral.dump()).find("sliding_window is -7"), std::string::npos);

  Json qwen =
      Json::parse(read_text(test_data("golden/families/qwen2-yarn-upper-windows/config.json")));
  EXPECT_EQ(read_json_config(qwen).windows, (std::vector<int64_t>{0, 9, 9}));
  qwen["layer_types"][1] = "full_attention";
  EXPECT_EQ(read_json_config(qwen).windows, (std::vector<int64_t>{0, 0, 9}));
  qwen.erase("layer_types");
  qwen["max_window_layers"] = 3;
  EXPECT_TRUE(read_json_config(qwen).windows.empty());
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(read_json_config(qwen).windows, (std::vector<int64_t>{9, 9, 9}));
  qwen["use_sliding_window"] = false;
  EXPECT_TRUE(read_json_config(qwen).windows.empty());
}

Json gemma_json() {
  return Json::parse(read_text(test_data("golden/families/gemma3-pattern/config.json")));
}

TEST(ModelConfig, GemmasLayersAreLocalButEachSixth) {
  Json json = gemma_json();
  EXPECT_EQ(read_json_config(json).windows, (std::vector<int64_t>{7, 0, 7}));
  // Files from before layer_types: one key, the other, none.
  json.erase("layer_types");
  json["sliding_window_pattern"] = 3;
  EXPECT_EQ(read_json_config(json).windows, (std::vector<int64_t>{7, 7, 0}));
  json.erase("sliding_window_pattern");
  EXPECT_EQ(read_json_config(json).windows, (std::vector<int64_t>{7, 0, 7}));
  json.erase("_sliding_window_pattern");
  json["num_hidden_layers"] = 7;
  EXPECT_EQ(read_json_config(json).windows, (std::vector<int64_t>{7, 7, 7, 7, 7, 0, 7}));
  json["num_hidden_layers"] = 1;
  json["layer_types"] = {"full_attention"};
  const ModelConfig global = read_json_config(json);
  EXPECT_TRUE(global.windows.empty());
  ScratchFolder folder;
  write_model_config(global, folder.path());
  EXPECT_EQ(read_model_config(folder.path()), global);
}

TEST(ModelConfig, GemmaHasTheDefaultsOfTransformersAndTheKeysOfItsNextVersion) {
  Json json = gemma_json();
  for (const char* key : {"rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "head_dim",
                          "sliding_window", "hidden_activation", "attention_bias", "rope_scaling"})
    json.erase(key);
  const ModelConfig config = read_json_config(json);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.local_rope_theta, 10000);
  EXPECT_EQ(config.attention_scalar, 256);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{4096, 0, 4096}));
  EXPECT_TRUE(config.tie_embeddings);
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 777.0}}}};
  const ModelConfig next = read_json_config(json);
  EXPECT_EQ(next.rope_theta, 5e5);
  EXPECT_EQ(next.rope_scaling, (RopeScaling{.type = RopeScaling::Type::kLinear, .factor = 8}));
  EXPECT_EQ(next.local_rope_theta, 777);
}

TEST(ModelConfig, RefusesGemmasThatAreNotBuilt) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"attn_logit_softcapping", 50.0, "attn_logit_softcapping is 50.0, which is not supported"},
      {"final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0, which is not supported"},
      {"use_bidirectional_attention", true, "use_bidirectional_attention is true"},
      {"hidden_activation", "silu", "hidden_activation is \"silu\", which is not supported"},
      {"sliding_window", nullptr, "sliding_window is 0; it must be from 1"},
      {"query_pre_attn_scalar", 0, "query_pre_attn_scalar is 0"},
      {"rope_local_base_freq", 0, "rope_local_base_freq is 0"},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}}},
        {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}},
       "rope_type is \"linear\", which is not supported; accepted: \"default\""},
      {"architectures",
       {"Gemma3ForConditionalGeneration"},
       "Qwen3MoeForCausalLM, Gemma3ForCausalLM"},
  };
  for (const auto& [key, value, message] : cases) {
    Json json = gemma_json();
    json[key] = value;
    EXPECT_NE(refusal_of_config(json.dump()).find(message), std::string::npos)
        << refusal_of_config(json.dump());
  }
}

Json sparse_json() {
  return Json::parse(read_text(test_data("golden/families/qwen3moe-layer0-dense/config.json")));
}

TEST(ModelConfig, ReadsWhichLayersHaveExperts) {
  Json json = sparse_json();
  const ModelConfig config = read_json_config(json);
  EXPECT_EQ(config.sparse, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_EQ(config.expert_size, 12);
  EXPECT_TRUE(config.normalised_experts);
  EXPECT_EQ(config.balance_coef, 0.001);
  EXPECT_FALSE(config.fused_experts || config.choice_bias);

  json["mlp_only_layers"] = nullptr;
  json["decoder_sparse_step"] = 2;
  EXPECT_EQ(read_json_config(json).sparse, (std::vector<bool>{false, true, false}));
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = {3, 0, -1, 18446744073709551615u};  // transformers asks `i in list`
  EXPECT_EQ(read_json_config(json).sparse, (std::vector<bool>{false, true, true}));
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {1, 1};
  EXPECT_EQ(read_json_config(json).num_experts, 0) << "no layer has any";
  json["decoder_sparse_step"] = 1;
  json.erase("mlp_only_layers");
  // transformers' defaults.
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "norm_topk_prob", "router_aux_loss_coef", "decoder_sparse_step"})
    json.erase(key);
  const ModelConfig defaults = read_json_config(json);
  EXPECT_EQ(defaults.sparse, (std::vector<bool>{true, true, true}));
  EXPECT_EQ(defaults.num_experts, 128);
  EXPECT_EQ(defaults.experts_per_token, 8);
  EXPECT_EQ(defaults.expert_size, 768);
  EXPECT_FALSE(defaults.normalised_experts);
  json["num_local_experts"] = 16;  // its name in transformers 5
  EXPECT_EQ(read_json_config(json).num_experts, 16);
  json["num_local_experts"] = 0;
  EXPECT_EQ(read_json_config(json).num_experts, 0);
  EXPECT_TRUE(read_json_config(json).sparse.empty());
  json["use_sliding_window"] = true;
  json["sliding_window"] = 9;
  EXPECT_EQ(read_json_config(json).windows, (std::vector<int64_t>{9, 9, 9}));
}

TEST(ModelConfig, RefusesExpertsThatDoNotFit) {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"num_experts", 5000, "num_experts is 5000; it must be from 1 to 4096"},
      {"num_experts", -1, "num_experts is -1"},
      {"num_experts_per_tok", 9, "num_experts_per_tok is 9; it must be from 1 to 8"},
      {"num_experts_per_tok", 0, "num_experts_per_tok is 0; it must be from 1 to 8"},
      {"moe_intermediate_size", 0, "moe_intermediate_size is 0"},
      {"decoder_sparse_step", 0, "decoder_sparse_step is 0"},
      {"mlp_only_layers", {"a"}, "mlp_only_layers is [\"a\"]; it must list layers by their"},
      {"mlp_only_layers", {0.5}, "mlp_only_layers is [0.5]"},
      {"mlp_only_layers", 1, "mlp_only_layers is 1"},
      {"norm_topk_prob", 1, "norm_topk_prob is 1; it must be true or false"},
      {"router_aux_loss_coef", -1, "router_aux_loss_coef is -1"},
  };
  for (const Case& c : cases) {
    Json json = sparse_json();
    json[c.key] = c.value;
    EXPECT_NE(refusal_of_config(json.dump()).find(c.message), std::string::npos)
        << refusal_of_config(json.dump());
  }
  // Each number by itself would do.
  Json many = sparse_json();
  many["num_experts"] = 4096;
  many["num_hidden_layers"] = 33;
  EXPECT_NE(refusal_of_config(many.dump())
                .find("num_hidden_layers is 33 and num_experts 4096; together they "
                      "are 135168, and at most 131072 are supported"),
            std::string::npos)
      << refusal_of_config(many.dump());
  Json large = sparse_json();
  large["num_experts"] = 4096;
  large["moe_intermediate_size"] = 1 << 24;
  large["hidden_size"] = 4096;
  EXPECT_NE(refusal_of_config(large.dump()).find("a layer of experts that large is not supported"),
            std::string::npos)
      << refusal_of_config(large.dump());
}

TEST(ModelConfig, ReadsEveryScalingOfPositions) {
  using enum RopeScaling::Type;
  Json json = llama_json();
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 3.0}};  // the older name
  EXPECT_EQ(read_json_config(json).rope_scaling, (RopeScaling{.type = kLinear, .factor = 3}));
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(read_json_config(json).rope_scaling, RopeScaling());
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.25}};
  EXPECT_EQ(read_json_config(json).rope_scaling,
            (RopeScaling{
                .type = kYarn, .factor = 4, .original_positions = 512, .attention_factor = 1.25}));
  json["rope_scaling"].erase("attention_factor");
  EXPECT_NEAR(read_json_config(json).rope_scaling.attention_factor, 0.1 * std::log(4) + 1, 1e-12);
  json["rope_scaling"]["mscale"] = 1.0;
  json["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_EQ(read_json_config(json).rope_scaling.attention_factor, 1);
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_theta", 777.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read_json_config(json).rope_theta, 777);
  EXPECT_EQ(read_json_config(json).rope_scaling.factor, 2);
}

TEST(ModelConfig, ASavedConfigNamesItsFamilyAndWhatItLacks) {
  ScratchFolder folder;
  write_model_config(awkward_config(true), folder.path());
  const Json json = Json::parse(read_text(folder.path() / "config.json"));
  EXPECT_EQ(json["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["hidden_act"], "silu");
  EXPECT_EQ(json["attention_bias"], false);
  EXPECT_EQ(json["mlp_bias"], false);
  EXPECT_TRUE(json.contains("rope_scaling") && json["rope_scaling"].is_null());
  EXPECT_FALSE(json.contains("quantization_config"));  // only a quantised model has it
}

TEST(ModelConfig, KeepsEveryEndOfATurnAsTheFileLists) {
  for (const Json& ends : {Json(7), Json({5, 6}), Json(nullptr)}) {
    Json json = llama_json();
    json["eos_token_id"] = ends;
    ScratchFolder folder;
    write_text(folder.path() / "config.json", json.dump());
    write_model_config(read_model_config(folder.path()), folder.path());
    EXPECT_EQ(Json::parse(read_text(folder.path() / "config.json"))["eos_token_id"], ends);
  }
  Json json = llama_json();
  json["eos_token_id"] = -1;
  ScratchFolder folder;
  write_text(folder.path() / "config.json", json.dump());
  EXPECT_TRUE(read_model_config(folder.path()).eos_tokens.empty());
}

TEST(ModelConfig, RefusesByNameWhatItDoesNotSupport) {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"architectures",
       {"GPT2LMHeadModel"},
       "architecture GPT2LMHeadModel is not supported; accepted: LlamaForCausalLM, "
       "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, "
       "Gemma3ForCausalLM"},
      {"architectures", Json::array({"A", "B"}), "must list one name"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8.0}},
       "rope_scaling: original_max_position_embeddings is missing"},
      {"rope_scaling",
       {{"type", "dynamic"}, {"factor", 2.0}},
       "rope_scaling: type is \"dynamic\", which is not supported; accepted: \"default\""},
      {"rope_scaling", {{"factor", 2.0}}, "rope_scaling: rope_type is missing"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "rope_scaling is 0.5; it must be"},
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1}, {"beta_slow", 1}},
       "beta_slow is 1 and beta_fast 1"},
      {"rope_scaling",
       {{"type", "llama3"},
        {"factor", 2.0},
        {"low_freq_factor", 4},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 64}},
       "low_freq_factor is 4 and high_freq_factor 4"},
      {"rope_parameters", {{"rope_type", "yarn"}}, "rope_parameters: factor is missing"},
      {"rope_parameters", "x", "must be an object"},
      {"attention_bias", 1, "attention_bias is 1; it must be true or false"},
      {"hidden_act", "gelu", "hidden_act is \"gelu\", which is not supported; accepted: \"silu\""},
      {"sliding_window", 4096, "sliding_window is 4096, which is not supported; accepted: null"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"},
      {"quantization_config", {{"bits", 4}}, "quantization_config is"},
      {"torch_dtype", "int8",
       "torch_dtype is \"int8\", which is not supported; accepted: \"float32\", \"bfloat16\", "
       "\"float16\""},
      {"hidden_size", "64", "hidden_size is \"64\"; it must be a whole number"},
      {"hidden_size", 64.5, "hidden_size is 64.5"},
      {"hidden_size", 0, "hidden_size is 0; it must be from 1"},
      {"hidden_size", -64, "hidden_size is -64"},
      // Would overflow a product of sizes later.
      {"vocab_size", int64_t{1} << 40, "vocab_size is 1099511627776"},
      {"vocab_size", ~uint64_t{0}, "vocab_size is 18446744073709551615"},
      {"num_hidden_layers", nullptr, "num_hidden_layers is missing"},
      {"num_attention_heads", 0, "num_attention_heads is 0"},
      {"num_key_value_heads", 3, "must be a multiple"},
      {"head_dim", 15, "head_dim is 15; rotary positions need an even number"},
      {"rms_norm_eps", -1, "rms_norm_eps is -1"},
      {"rope_theta", 0, "rope_theta is 0"},
      {"tie_word_embeddings", "yes", "tie_word_embeddings is \"yes\""},
      {"eos_token_id", 257, "eos_token_id is 257; the vocabulary has 257 tokens"},
      {"eos_token_id", {2, 300}, "eos_token_id is 300; the vocabulary has 257 tokens"},
      {"eos_token_id", "end", "eos_token_id is \"end\""},
  };
  for (const Case& c : cases) {
    Json json = llama_json();
    json[c.key] = c.value;
    EXPECT_NE(refusal_of_config(json.dump()).find(c.message), std::string::npos)
        << refusal_of_config(json.dump());
  }
}

// Keys of Granite, Cohere, Gemma, Phi, GLM, OLMo, MiniCPM, Falcon-H1, Grok, DeepSeek, Llama 4 and
// others, with a value that changes logits and one that does not.
TEST(ModelConfig, RefusesKeysOfOtherFamiliesThatChangeLogits) {
  struct Case {
    const char* key;
    Json refused, accepted;
  };
  const Case cases[] = {
      {"logits_scaling", 8.0, 1.0},
      {"embedding_multiplier", 12, 1},
      {"residual_multiplier", 0.22, 1.0},
      {"attention_multiplier", 0.015625, nullptr},
      {"logit_scale", 0.0625, 1.0},
      {"use_qk_norm", true, false},
      {"qk_layernorm", true, false},
      {"attn_logit_softcapping", 50.0, nullptr},
      {"final_logit_softcapping", 30.0, nullptr},
      {"query_pre_attn_scalar", 256, nullptr},
      {"partial_rotary_factor", 0.5, 1.0},
      {"rotary_pct", 0.25, 1.0},
      {"rope_interleave", true, false},
      {"clip_qkv", 8.0, nullptr},
      {"scale_emb", 12, 1},
      {"scale_depth", 1.4, nullptr},
      {"dim_model_base", 256, nullptr},
      {"lm_head_multiplier", 0.0078125, 1.0},
      {"output_multiplier_scale", 0.57, 1},
      {"routed_scaling_factor", 2.5, 1.0},
      {"attention_sinks", true, false},
      {"swiglu_limit", 7.0, nullptr},
      {"attn_temperature_tuning", true, false},
      {"no_rope_layers", {1, 0}, Json::array()},
      {"attention_chunk_size", 8192, nullptr},
      {"position_embedding_type", "nope", "rope"},
      {"alibi", true, false},
      {"use_parallel_residual", true, false},
      {"scoring_func", "sigmoid", "softmax"},
  };
  for (const Case& c : cases) {
    Json json = llama_json();
    json[c.key] = c.refused;
    EXPECT_NE(refusal_of_config(json.dump())
                  .find(std::string(c.key) + " is " + c.refused.dump() +
                        ", which is not supported; accepted: "),
              std::string::npos)
        << c.key << ": " << refusal_of_config(json.dump());
    json[c.key] = c.accepted;
    EXPECT_EQ(refusal_of_config(json.dump()), "accepted") << c.key;
    json[c.key] = nullptr;
    EXPECT_EQ(refusal_of_config(json.dump()), "accepted") << c.key;
  }
  // Since transformers 5 it stands beside the base.
  Json json = llama_json();
  json["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}};
  EXPECT_NE(refusal_of_config(json.dump()).find("rope_parameters: partial_rotary_factor is 0.5"),
            std::string::npos);
  // What nobody here knows, and what only says how to train or to run.
  json = llama_json();
  json.update({{"pretraining_tp", 2},
               {"use_cache", true},
               {"attention_dropout", 0.1},
               {"initializer_range", 0.3},
               {"unsloth_version", "2025.1"}});
  EXPECT_EQ(refusal_of_config(json.dump()), "accepted");
}

// Names that one family has for itself.
TEST(ModelConfig, NormsOfQueriesAreNoSurpriseWhereTheFamilyHasThem) {
  const ScratchFolder folder;
  ModelConfig config = awkward_config(true);
  config.architecture = "Qwen3ForCausalLM";
  config.qk_norm = true;
  write_model_config(config, folder.path());
  Json json = Json::parse(read_text(folder.path() / "config.json"));
  json["use_qk_norm"] = true;
  EXPECT_EQ(refusal_of_config(json.dump()), "accepted");
}

TEST(ModelConfig, NamesModelsThatAreNotOfTextAlone) {
  Json json = llama_json();
  json["architectures"] = {"Gemma3ForConditionalGeneration"};
  EXPECT_NE(refusal_of_config(json.dump())
                .find("Gemma3ForConditionalGeneration is a multimodal model, and "
                      "only models of text are supported; accepted: Llama"),
            std::string::npos)
      << refusal_of_config(json.dump());
  json["architectures"] = {"LlavaQwenForCausalLM"};
  json["vision_config"] = {{"depth", 32}};
  EXPECT_NE(refusal_of_config(json.dump())
                .find("LlavaQwenForCausalLM is a multimodal model (it has a vision_config)"),
            std::string::npos)
      << refusal_of_config(json.dump());
  json.erase("architectures");
  json["model_type"] = "qwen2_5_vl";
  EXPECT_NE(refusal_of_config(json.dump()).find("qwen2_5_vl is a multimodal model"),
            std::string::npos);
  json.erase("vision_config");
  json["architectures"] = {"T5ForConditionalGeneration"};
  json["is_encoder_decoder"] = true;
  EXPECT_NE(refusal_of_config(json.dump())
                .find("T5ForConditionalGeneration is a model with an encoder, which is"),
            std::string::npos)
      << refusal_of_config(json.dump());
}

// What a folder or path says that is no model, by what it is.
std::string refusal_of(const std::filesystem::path& directory) {
  try {
    read_model_config(directory);
    return "accepted";
  } catch (const UserError& e) {
    return e.what();
  }
}

TEST(ModelFolder, NamesAnIdOfAHub) {
  const ScratchFolder folder;
  for (const std::filesystem::path& path :
       {std::filesystem::path("Qwen/Qwen2.5-0.5B"), folder.path() / "Qwen/Qwen2.5-0.5B"})
    EXPECT_NE(refusal_of(path).find(
                  "\n       Nothing is fetched from a hub. If Qwen/Qwen2.5-0.5B is an id of the "
                  "Hugging Face hub, try hf download Qwen/Qwen2.5-0.5B --local-dir DIR, and "
                  "name DIR."),
              std::string::npos)
        << refusal_of(path);
  for (const std::filesystem::path& path :
       {std::filesystem::path("none"), std::filesystem::path("a/b/c"), std::filesystem::path("./a"),
        std::filesystem::path("../a"), std::filesystem::path("a/"), std::filesystem::path("/a/b"),
        folder.path() / "none", folder.path()})
    EXPECT_EQ(refusal_of(path).find("hub"), std::string::npos) << refusal_of(path);
}

TEST(ModelFolder, NamesWhatIsNoModel) {
  const auto says = [](const char* file, const std::string& text, const char* message) {
    const ScratchFolder folder;
    if (std::string_view(file).ends_with('/')) {
      std::filesystem::create_directory(folder.path() / file);
    } else {
      write_text(folder.path() / file, text);
    }
    EXPECT_NE(refusal_of(folder.path()).find(message), std::string::npos)
        << refusal_of(folder.path());
  };
  says("adapter_config.json", R"({"base_model_name_or_path": "Qwen/Qwen3-4B"})",
       "The folder is an adapter of Qwen/Qwen3-4B, not a model.\n       Name its base, and go on "
       "with");
  says("adapter_model.safetensors", "", "The folder is an adapter, not a model.");
  says("model-q4_0.gguf", "", "model-q4_0.gguf is a GGUF file.\n       Make a folder of it once");
  says("snapshots/", "", "The folder is a part of the hub's cache.");
  says("pytorch_model.bin", "", "pytorch_model.bin holds pickled weights, which are not read.");
  says("consolidated.00.pth", "", "consolidated.00.pth holds pickled weights");
  says("README.md", "", "A model is a Hugging Face folder with config.json and model.safetensors.");
  const ScratchFolder folder;
  write_text(folder.path() / "a.gguf", "");
  EXPECT_NE(refusal_of(folder.path() / "a.gguf").find("a.gguf is a GGUF file"), std::string::npos);
}

// transformers would load the adapter, and the logits would be others.
TEST(ModelFolder, RefusesAnAdapterBesideAModel) {
  const ScratchFolder folder;
  write_text(folder.path() / "config.json", llama_json().dump());
  write_text(folder.path() / "adapter_config.json", "{}");
  EXPECT_NE(refusal_of(folder.path()).find("has adapter_config.json. The folder is an adapter"),
            std::string::npos)
      << refusal_of(folder.path());
}

// Qwen has 151,936 rows for 151,669 ids.
TEST(ModelFolder, IdsBehindThoseOfTheTokenizerArePadding) {
  const ScratchFolder folder;
  Json json = llama_json();  // a vocabulary of 257
  json["eos_token_id"] = 2;
  write_text(folder.path() / "config.json", json.dump());
  EXPECT_EQ(read_model_config(folder.path()).padded_ids, 0);
  const auto padded_with = [&](const char* tokenizer) {
    write_text(folder.path() / "tokenizer.json", tokenizer);
    const ModelConfig config = read_model_config(folder.path());
    EXPECT_EQ(config.num_ids() + config.padded_ids, 257);
    return config.padded_ids;
  };
  EXPECT_EQ(padded_with("{}"), 0);
  // Unigram: an id is a place in the list. A kind that nobody knows is no padding.
  EXPECT_EQ(
      padded_with(R"({"model": {"vocab": [["a", 0], ["b", -1]]}, "added_tokens": [{"id": 0}]})"),
      254);
  EXPECT_EQ(padded_with(R"({"model": {"vocab": 7}, "added_tokens": [{"id": 0}]})"), 0);
  EXPECT_EQ(padded_with(R"({"added_tokens": [{"id": 0}]})"), 0);
  // The largest id counts, whatever is missing below it.
  EXPECT_EQ(padded_with(R"({"model": {"vocab": {"a": 0, "b": 99, "c": 3}}})"), 157);
  EXPECT_EQ(padded_with(R"({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 199}]})"), 57);
  // More than the model has is refused by who reads the tokenizer.
  EXPECT_EQ(padded_with(R"({"model": {"vocab": {"a": 300}}})"), 0);
  // Nobody could end.
  json["eos_token_id"] = {2, 250};
  write_text(folder.path() / "config.json", json.dump());
  EXPECT_EQ(padded_with(R"({"model": {"vocab": {"a": 0, "b": 99}}})"), 6);
}

TEST(ModelConfig, RefusesAHeadSizeThatDoesNotDivide) {
  Json json = llama_json();
  json.erase("head_dim");
  json["num_attention_heads"] = 6;
  EXPECT_NE(refusal_of_config(json.dump()).find("head_dim is missing"), std::string::npos);
}

TEST(ModelConfig, RefusesOtherModelTypesWithoutArchitectures) {
  Json json = llama_json();
  json.erase("architectures");
  json["model_type"] = "gpt2";
  EXPECT_NE(refusal_of_config(json.dump())
                .find("model_type is \"gpt2\" and architectures is missing; accepted: \"llama\", "
                      "\"mistral\", \"qwen2\", "
                      "\"qwen3\", \"qwen3_moe\", \"gemma3_text\""),
            std::string::npos);
}

TEST(ModelConfig, RefusesWhatIsNoJsonObject) {
  EXPECT_NE(refusal_of_config("{\"hidden_size\": ").find("not JSON"), std::string::npos);
  EXPECT_NE(refusal_of_config("[]").find("not a JSON object"), std::string::npos);
}

TEST(ModelConfig, SaysWhatAModelFolderIsWhenThereIsNone) {
  ScratchFolder folder;
  try {
    read_model_config(folder.path());
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("Hugging Face folder"), std::string::npos) << e.what();
  }
}

TEST(ModelConfig, AcceptsEveryStorageDtypeAndKeepsIt) {
  const ScratchFolder folder;
  for (const char* key : {"torch_dtype", "dtype"}) {
    for (const auto& [name, dtype] : {std::pair{"float32", Dtype::kF32},
                                      {"bfloat16", Dtype::kBF16},
                                      {"float16", Dtype::kF16}}) {
      Json json = llama_json();
      json.erase("torch_dtype");
      json[key] = name;
      write_text(folder.path() / "config.json", json.dump());
      const ModelConfig config = read_model_config(folder.path());
      EXPECT_EQ(config.dtype, dtype);
      write_model_config(config, folder.path());
      EXPECT_EQ(read_model_config(folder.path()).dtype, dtype);
    }
  }
}

TEST(Compute, AutoFollowsTheFiles) {
  ModelConfig config;
  for (const Dtype files : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    config.dtype = files;
    EXPECT_EQ(compute_dtype(Compute::kF32, config), Dtype::kF32);
    EXPECT_EQ(compute_dtype(Compute::kBf16, config), Dtype::kBF16);
    EXPECT_EQ(compute_dtype(Compute::kAuto, config),
              files == Dtype::kBF16 ? Dtype::kBF16 : Dtype::kF32);
  }
}

// Chat models end a turn by tokens that config.json does not name.
TEST(ModelConfig, TheEndsOfGenerationConfigCountToo) {
  const ScratchFolder folder;
  const auto generation = folder.path() / "generation_config.json";
  Json json = llama_json();
  json["eos_token_id"] = 5;
  write_text(folder.path() / "config.json", json.dump());
  write_text(generation, R"({"eos_token_id": [7, 5]})");
  EXPECT_EQ(read_model_config(folder.path()).eos_tokens, (std::vector<int64_t>{5, 7}));
  write_text(generation, R"({"temperature": 0.6})");
  EXPECT_EQ(read_model_config(folder.path()).eos_tokens, (std::vector<int64_t>{5}));
  write_text(generation, R"({"eos_token_id": 999999})");
  try {
    read_model_config(folder.path());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("generation_config.json: eos_token_id is 999999"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tailrace
