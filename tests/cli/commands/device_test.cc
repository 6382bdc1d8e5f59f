// --device: `model score`, `model generate` and `eval` on the real binary, and on the same one with
// an emulated GPU.
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/config/options.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/model/safetensors.h"
#include "core/text/tokenizer.h"
#include "sandbox/builtin/built_in.h"
#include "tests/cli/commands/stories.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

const std::string kRow = "{\"input_ids\": [1, 403, 407, 261, 378, 432, 383, 286]}\n";

// The binary whose device 0 is emulated.
BinaryResult run_emulated(const std::string& arguments, const std::string& input = "") {
  return run_program(TAILRACE_EMULATED, arguments, input);
}

std::vector<float> logprobs_of(const BinaryResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out)["logprobs"].get<std::vector<float>>();
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], bound) << i;
}

TEST(CliDevice, ScoresAsTheCpuDoes) {
  const auto cpu = logprobs_of(run_binary("model score --device cpu --model " + kStories, kRow));
  const auto gpu = run_emulated("model score --device cuda --model " + kStories, kRow);
  EXPECT_EQ(gpu.err, "computes on emulated GPU (cuda); weights, activations and KV cache in f32\n");
  expect_near(logprobs_of(gpu), cpu, 1e-4);
  // It is a device to who asks for none in particular, too.
  EXPECT_EQ(run_emulated("model score --model " + kStories, kRow).out, gpu.out);
  // bf16 keeps 8 bits of each operand.
  const auto bf16 =
      run_emulated("model score --device cuda --compute bf16 --model " + kStories, kRow);
  EXPECT_EQ(bf16.err,
            "computes on emulated GPU (cuda); weights, activations and KV cache in bf16\n");
  expect_near(logprobs_of(bf16), cpu, 0.1);
  EXPECT_NE(bf16.out, gpu.out);
}

TEST(CliDevice, WritesTheLogitsOfTheDevice) {
  TemporaryDirectory folder;
  const std::string file = (folder / "logits.safetensors").string();
  const auto result =
      run_emulated("model score --device cuda --model " + kStories + " --logits " + file, kRow);
  const auto logprobs = logprobs_of(result);
  const SafetensorsFile written(file);
  const TensorView& view = written.tensors().at("logits");
  std::vector<float> logits(static_cast<size_t>(view.num_elements()));
  to_float(view, logits);
  const auto vocab = static_cast<size_t>(view.shape[1]);
  double sum = 0;
  for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]));
  EXPECT_NEAR(logits[403] - std::log(sum), logprobs[0], 1e-4);
}

// What a token is sampled with is what it is scored with, bit for bit, on one device (rule 3).
TEST(CliDevice, GeneratesWhatItScores) {
  for (const std::string compute : {"f32", "bf16"}) {
    for (const std::string sampling : {"--temperature 0", "--temperature 1", "--top-k 5"}) {
      const std::string common = " --device cuda --compute " + compute + " --model " + kStories;
      const auto made =
          run_emulated("model generate --json --max-new-tokens 12 --seed 3 " + sampling + common,
                       "{\"input_ids\": [1, 403, 407]}\n");
      ASSERT_EQ(made.exit_code, 0) << made.err;
      const json row = json::parse(made.out);
      std::vector<int32_t> ids = {1, 403, 407};
      for (const json& id : row["output_ids"]) ids.push_back(id.get<int32_t>());
      const auto scored =
          logprobs_of(run_emulated("model score" + common, json{{"input_ids", ids}}.dump() + "\n"));
      const auto sampled = row["logprobs"].get<std::vector<float>>();
      ASSERT_EQ(sampled.size() + 2, scored.size());
      for (size_t i = 0; i < sampled.size(); ++i)
        EXPECT_EQ(sampled[i], scored[i + 2]) << compute << " " << sampling << " " << i;
    }
  }
}

TEST(CliDevice, GreedyTextIsThatOfTheCpu) {
  const std::string arguments =
      "model generate --temperature 0 --max-new-tokens 24 --prompt 'Once upon a time' --model " +
      kStories;
  const auto cpu = run_binary(arguments + " --device cpu");
  const auto gpu = run_emulated(arguments + " --device cuda");
  ASSERT_EQ(gpu.exit_code, 0) << gpu.err;
  EXPECT_EQ(gpu.out, cpu.out);
}

TEST(CliDevice, EvaluatesOnTheDevice) {
  TemporaryDirectory folder;
  const auto info = sandbox::built_in_environments().make("frozen_grid", {})->info();
  const ModelConfig config =
      model_config({.hidden_size = 16, .layers = 1, .heads = 2, .max_positions = 256},
                   3 + static_cast<int64_t>(info.vocabulary.size()));
  ParameterLayout layout(config);
  Parameters parameters(layout);
  init_parameters(config, 1, parameters);
  save_model(folder / "policy", config, parameters);
  text::write_word_tokenizer(folder / "policy", info.vocabulary);
  const std::string arguments = "eval --json --env frozen_grid --episodes 4 --samples 2 --seed 5" +
                                std::string(" --temperature 0 --model ") +
                                (folder / "policy").string();
  const auto cpu = run_binary(arguments + " --device cpu");
  const auto gpu = run_emulated(arguments + " --device cuda");
  ASSERT_EQ(gpu.exit_code, 0) << gpu.err;
  EXPECT_EQ(gpu.err, "computes on emulated GPU (cuda); weights, activations and KV cache in f32\n");
  EXPECT_EQ(json::parse(gpu.out)["device"], "emulated GPU (cuda)");
  EXPECT_EQ(json::parse(cpu.out)["device"], "the CPU");
  EXPECT_EQ(json::parse(gpu.out)["reward"], json::parse(cpu.out)["reward"]);
  EXPECT_EQ(json::parse(gpu.out)["mean_turns"], json::parse(cpu.out)["mean_turns"]);
}

// Whoever repeats the evaluation of a run that computed on the CPU does so too, with its KV cache.
TEST(CliDevice, ARunsEvaluationIsRepeatedWhereItComputed) {
  TemporaryDirectory folder;
  const std::string run = (folder / "run").string();
  const auto launched =
      run_binary("launch " + std::string(TAILRACE_SOURCE_DIR) +
                 "/configs/quickstart.yaml model.device=cpu model.kv_cache_dtype=bf16 run.steps=1 "
                 "run.dir=" +
                 run +
                 " sft.demonstrations=256 eval.prompts=8 "
                 "rollout.sampling.top_k=3");
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  const auto here = run_binary("eval --json --episodes 8 --run " + run);
  EXPECT_NE(here.err.find("KV cache in bf16\n"), std::string::npos) << here.err;
  const auto beside_a_gpu = run_emulated("eval --json --episodes 8 --run " + run);
  ASSERT_EQ(beside_a_gpu.exit_code, 0) << beside_a_gpu.err;
  EXPECT_EQ(json::parse(beside_a_gpu.out)["device"], "the CPU");
  EXPECT_EQ(json::parse(beside_a_gpu.out)["reward"], json::parse(here.out)["reward"]);
}

TEST(CliDevice, SaysWhyThereIsNone) {
  const auto result = run_binary("model score --device cuda --model " + kStories, kRow);
  if (result.exit_code == 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(result.err.starts_with("error: --device cuda: ")) << result.err;
  EXPECT_NE(result.err.find("Try --device cpu; 'tailrace doctor' tells what there is."),
            std::string::npos)
      << result.err;
  const auto wrong = run_binary("model score --device tpu --model " + kStories, kRow);
  EXPECT_NE(wrong.err.find("cuda"), std::string::npos) << wrong.err;
}

TEST(CliDevice, AModelThatItCannotComputeStaysOnTheCpu) {
  TemporaryDirectory folder;
  ModelConfig config =
      model_config({.hidden_size = 16, .layers = 1, .heads = 2, .max_positions = 64}, 20);
  config.architecture = "Qwen3MoeForCausalLM";
  config.qk_norm = true;
  config.sparse = {true};
  config.num_experts = 4;
  config.experts_per_token = 2;
  config.expert_size = 8;
  ParameterLayout layout(config);
  Parameters parameters(layout);
  init_parameters(config, 1, parameters);
  save_model(folder / "sparse", config, parameters);
  const std::string model = " --model " + (folder / "sparse").string();
  const std::string row = "{\"input_ids\": [1, 2, 3]}\n";
  const auto on_gpu = run_emulated("model score --device cuda" + model, row);
  EXPECT_EQ(on_gpu.exit_code, 0) << on_gpu.err;
  const auto logprobs_of = [](const BinaryResult& result) {
    return json::parse(result.out).at("logprobs").get<std::vector<double>>();
  };
  const auto got = logprobs_of(on_gpu);
  const auto want = logprobs_of(run_binary("model score --device cpu" + model, row));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
}

TEST(CliDevice, DoctorTellsOfIt) {
  const auto text = run_emulated("doctor");
  EXPECT_NE(text.out.find("emulated GPU, emulated, 1 multiprocessors, 8.0 GiB free of 8.0 GiB"),
            std::string::npos)
      << text.out;
  const json facts = json::parse(run_emulated("doctor --json").out);
  EXPECT_EQ(facts["cuda"]["devices"][0]["name"], "emulated GPU");
  const json here = json::parse(run_binary("doctor --json").out);
  EXPECT_TRUE(here["cuda"]["fault"].is_string() || !here["cuda"]["devices"].empty());
}

}  // namespace
}  // namespace tailrace
