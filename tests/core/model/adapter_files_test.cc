// Adapters as folders of peft.

#include "core/model/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/model/parameter_files.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

std::string refusal_of_adapter(const fs::path& folder, const std::string& json) {
  write_text(folder / kAdapterConfigFile, json);
  try {
    (void)read_adapter_config(folder);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void save(const fs::path& folder, const Lora& lora) {
  ModelConfig config = awkward_config(false);
  config.lora = lora;
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  save_adapter(folder, lora, Parameters(layout), "of the base");
}

TEST(AdapterFiles, AConfigComesBackAsItWasWritten) {
  const ScratchFolder folder;
  const Lora lora{.rank = 8,
                  .alpha = 12.5,
                  .targets = {LoraTarget::kQ, LoraTarget::kDown},
                  .base = "/models/a"};
  save(folder.path(), lora);
  EXPECT_TRUE(is_adapter(folder.path()));
  EXPECT_EQ(read_adapter_config(folder.path()), lora);
  EXPECT_EQ(base_root_of(folder.path()), "of the base");
}

TEST(AdapterFiles, TargetsMayBeAllOrInAnyOrder) {
  const ScratchFolder folder;
  write_text(folder.path() / kAdapterConfigFile,
             R"({"r": 4, "lora_alpha": 8, "target_modules": "all-linear"})");
  EXPECT_EQ(read_adapter_config(folder.path()).targets.size(), 7u);
  write_text(folder.path() / kAdapterConfigFile,
             R"({"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "q_proj", "v_proj"]})");
  EXPECT_EQ(read_adapter_config(folder.path()).targets,
            (std::vector{LoraTarget::kQ, LoraTarget::kV}));
  // As peft writes them where there are few.
  write_text(folder.path() / kAdapterConfigFile,
             R"({"r": 4, "lora_alpha": 8, "target_modules":
                 ["model.layers.1.mlp.up_proj", "model.layers.0.mlp.up_proj"]})");
  EXPECT_EQ(read_adapter_config(folder.path()).targets, std::vector{LoraTarget::kUp});
}

// Patterns of ms-swift and Unsloth, which peft keeps as they are.
TEST(AdapterFiles, TargetsMayBeARegularExpressionOverWholeNames) {
  const ScratchFolder folder;
  const auto write = [&](const std::string& pattern) {
    const nlohmann::json json = {{"r", 4}, {"lora_alpha", 8}, {"target_modules", pattern}};
    write_text(folder.path() / kAdapterConfigFile, json.dump());
  };
  using enum LoraTarget;
  const std::vector<std::pair<std::string, std::vector<LoraTarget>>> patterns = {
      {R"(^(model(?=\.).*\.(q_proj|v_proj))$)", {kQ, kV}},
      {R"((?:.*?(?:language|text).*?(?:self_attn|attention|mlp).*?(?:q_proj|up_proj).*?)|)"
       R"((?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|ffn)\.)"
       R"((?:(?:k_proj|o_proj|gate_proj|down_proj))))",
       {kK, kO, kGate, kDown}},
      {R"(.*self_attn\.(?!o_proj).*)", {kQ, kK, kV}},
      {R"(.*_proj)", {kQ, kK, kV, kO, kGate, kUp, kDown}},
      {R"(model\.layers\.\d{1,3}\.mlp\.\w+)", {kGate, kUp, kDown}}};
  for (const auto& [pattern, targets] : patterns) {
    write(pattern);
    EXPECT_EQ(read_adapter_config(folder.path()).targets, targets) << pattern;
  }
  for (const auto& [pattern, told] : std::vector<std::pair<std::string, std::string>>{
           {"q_proj",
            "matches no linear layer of the first layer, such as "
            "model.layers.0.self_attn.q_proj. Accepted are"},
           {".*(q_proj|lm_head)", "target_modules matches lm_head, which is not built"},
           {"(?i).*q_proj", "has (?i, which is not read"},
           {".*(q_proj", "cannot be read as a regular expression ("}}) {
    write(pattern);
    const std::string error =
        refusal_of_adapter(folder.path(), read_file(folder.path() / kAdapterConfigFile).value());
    EXPECT_NE(error.find(told), std::string::npos) << error;
  }
}

// The layers that the expression names are those of the tensors: one that a layer lacks, and one
// that it does not name, are refused where the file is read.
TEST(AdapterFiles, ThePatternIsProvedByTheTensors) {
  const ScratchFolder folder;
  ModelConfig config = awkward_config(false);
  config.lora = {.rank = 3, .alpha = 4, .targets = {LoraTarget::kQ, LoraTarget::kV}, .base = ""};
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  const Parameters saved(layout);
  save_parameters(folder.path() / kAdapterFile, saved);
  for (const auto& [names, is_right] :
       {std::pair{"q_proj|v_proj", true}, {"q_proj", false}, {"q_proj|v_proj|o_proj", false}}) {
    const nlohmann::json json = {
        {"r", 3}, {"lora_alpha", 4}, {"target_modules", fmt::format(".*\\.({})", names)}};
    write_text(folder.path() / kAdapterConfigFile, json.dump());
    const auto load = [&] {
      config.lora = read_adapter_config(folder.path());
      const ParameterLayout named = ParameterLayout::of_adapter(config);
      Parameters loaded(named);
      load_parameters(folder.path(), config, loaded, kAdapterFile);
    };
    if (is_right)
      EXPECT_NO_THROW(load());
    else
      EXPECT_THROW(load(), UserError) << names;
  }
}

// peft would build no adapter for the modules that are left out, and drop their tensors.
TEST(AdapterFiles, TargetsThatLeaveOutATensorAreRefused) {
  const ScratchFolder folder;
  ModelConfig config = awkward_config(false);
  ASSERT_EQ(config.num_layers, 3);
  config.lora = {.rank = 3, .alpha = 4, .targets = {LoraTarget::kQ, LoraTarget::kV}, .base = ""};
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  save_parameters(folder.path() / kAdapterFile, Parameters(layout));
  const auto told = [&](const nlohmann::json& targets) {
    return refusal_of_adapter(
        folder.path(),
        nlohmann::json{{"r", 3}, {"lora_alpha", 4}, {"target_modules", targets}}.dump());
  };
  const std::string left_out =
      "leaves out model.layers.1.self_attn.q_proj, model.layers.1.self_attn.v_proj, "
      "model.layers.2.self_attn.q_proj and 1 more, of which adapter_model.safetensors has tensors.";
  const std::string error = told("model\\.layers\\.0\\..*(q|v)_proj");
  EXPECT_NE(error.find(R"(target_modules "model\\.layers\\.0\\..*(q|v)_proj" )" + left_out),
            std::string::npos)
      << error;
  EXPECT_NE(error.find(folder.path() / kAdapterConfigFile), std::string::npos) << error;
  const std::string of_list =
      told({"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"});
  EXPECT_NE(of_list.find("is a list that " + left_out), std::string::npos) << of_list;
  // "q_proj" is the end of a name behind a dot; "v_proj" is said of the first layer alone.
  const std::string of_one = told({"q_proj", "layers.0.self_attn.v_proj"});
  EXPECT_NE(of_one.find(
                "leaves out model.layers.1.self_attn.v_proj, model.layers.2.self_attn.v_proj, of"),
            std::string::npos)
      << of_one;
  EXPECT_EQ(told({"q_proj", "self_attn.v_proj"}), "");
  EXPECT_EQ(told("model\\.layers\\.[0-2]\\..*(q|v)_proj"), "");
  EXPECT_EQ(told("all-linear"), "");
}

TEST(AdapterFiles, WhatWouldChangeTheNumbersIsRefusedByName) {
  const ScratchFolder folder;
  const auto with = [](const std::string& more) {
    return R"({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], )" + more + "}";
  };
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"use_dora", "true"},
                                                        {"use_rslora", "true"},
                                                        {"bias", "\"all\""},
                                                        {"rank_pattern", R"({"q_proj": 2})"},
                                                        {"modules_to_save", R"(["lm_head"])"},
                                                        {"layers_to_transform", "[0]"},
                                                        {"layers_pattern", "\"layers\""},
                                                        {"exclude_modules", R"(["v_proj"])"},
                                                        {"init_lora_weights", "\"pissa\""},
                                                        {"peft_type", "\"IA3\""}}) {
    const std::string told = refusal_of_adapter(folder.path(), with("\"" + key + "\": " + value));
    EXPECT_NE(told.find(key), std::string::npos) << told;
    EXPECT_NE(told.find(kAdapterConfigFile), std::string::npos) << told;
  }
  EXPECT_NE(refusal_of_adapter(folder.path(),
                               R"({"r": 4, "lora_alpha": 8, "target_modules": ["lm_head"]})")
                .find("lm_head"),
            std::string::npos);
  EXPECT_NE(refusal_of_adapter(folder.path(),
                               R"({"r": 0, "lora_alpha": 8, "target_modules": ["q_proj"]})")
                .find("r is 0"),
            std::string::npos);
  EXPECT_NE(refusal_of_adapter(folder.path(), R"({"lora_alpha": 8, "target_modules": ["q_proj"]})")
                .find("r "),
            std::string::npos);
}

TEST(AdapterFiles, ItsBaseIsAFolderHereOrTheMessageSaysWhatToDo) {
  const ScratchFolder folder;
  Lora lora{.rank = 2, .alpha = 4, .targets = {LoraTarget::kQ}, .base = "Qwen/Qwen2.5-0.5B"};
  try {
    (void)base_folder(folder.path(), lora);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("Qwen/Qwen2.5-0.5B"), std::string::npos);
  }
  save(folder.path(), lora);
  EXPECT_THROW(read_policy_folder(folder.path()), UserError);
  // Beside the adapter too.
  fs::create_directories(folder.path() / "base");
  fs::copy(test_data("models/stories260K"), folder.path() / "base");
  lora.base = "base";
  EXPECT_EQ(base_folder(folder.path(), lora), folder.path() / "base");
  save(folder.path(), lora);
  const PolicyFolder policy = read_policy_folder(folder.path());
  EXPECT_EQ(policy.config.lora, lora);
  EXPECT_EQ(policy.config.hidden_size, 64);
}

TEST(AdapterFiles, AModelIsItsOwnBase) {
  const fs::path model = test_data("models/stories260K");
  const PolicyFolder policy = read_policy_folder(model);
  EXPECT_EQ(policy.base, model);
  EXPECT_FALSE(policy.config.lora);
}

TEST(AdapterFiles, WeightsComeBackAndThoseOfAnotherShapeAreRefused) {
  const ScratchFolder folder;
  ModelConfig config = awkward_config(false);
  config.lora = {.rank = 3, .alpha = 4, .targets = {LoraTarget::kK, LoraTarget::kUp}, .base = ""};
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  Parameters saved(layout), loaded(layout);
  init_parameters(config, /*seed=*/3, saved);
  save_parameters(folder.path() / kAdapterFile, saved);
  load_parameters(folder.path(), config, loaded, kAdapterFile);
  EXPECT_TRUE(std::ranges::equal(saved.flat(), loaded.flat()));
  // peft wrote it for one layer alone.
  ModelConfig deeper = config;
  ++deeper.num_layers;
  const ParameterLayout more = ParameterLayout::of_adapter(deeper);
  Parameters lacking(more);
  EXPECT_THROW(load_parameters(folder.path(), deeper, lacking, kAdapterFile), UserError);
  config.lora.rank = 4;
  const ParameterLayout other = ParameterLayout::of_adapter(config);
  Parameters wrong(other);
  EXPECT_THROW(load_parameters(folder.path(), config, wrong, kAdapterFile), UserError);
}

// A is what makes a fresh adapter learn, and B 0 what makes it begin as its base.
TEST(AdapterFiles, AFreshOneIsThatOfPeft) {
  ModelConfig config = awkward_config(false);
  config.lora = {.rank = 8, .alpha = 4, .targets = {LoraTarget::kDown}, .base = ""};
  const ParameterLayout layout = ParameterLayout::of_adapter(config);
  Parameters fresh(layout);
  init_parameters(config, /*seed=*/3, fresh);
  const float bound = 1 / std::sqrt(static_cast<float>(config.intermediate_size));
  for (const ParameterInfo& info : layout.entries()) {
    const auto values = std::as_const(fresh).vector(info.name);
    const float largest =
        std::abs(*std::ranges::max_element(values, {}, [](float v) { return std::abs(v); }));
    if (info.kind == ParameterKind::kLowRankOut) {
      EXPECT_EQ(largest, 0) << info.name;
    } else {
      EXPECT_LE(largest, bound) << info.name;
      EXPECT_GT(largest, 0.9f * bound) << info.name;
    }
  }
}

}  // namespace
}  // namespace tailrace
