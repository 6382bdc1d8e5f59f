// `eval` and `model generate` on the real binary, and the summary that eval makes.
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/config/options.h"
#include "cli/eval/evaluation.h"
#include "core/model/config_text.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "sandbox/builtin/built_in.h"
#include "tests/cli/commands/stories.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

using nlohmann::json;

// A tiny random policy with the words of frozen_grid.
std::string make_policy(const TemporaryDirectory& folder) {
  auto info = sandbox::built_in_environments().make("frozen_grid", {})->info();
  ModelConfig config =
      model_config({.hidden_size = 16, .layers = 1, .heads = 2, .max_positions = 256},
                   3 + static_cast<int64_t>(info.vocabulary.size()));
  ParameterLayout layout(config);
  Parameters parameters(layout);
  init_parameters(config, 1, parameters);
  save_model(folder / "policy", config, parameters);
  text::write_word_tokenizer(folder / "policy", info.vocabulary);
  return (folder / "policy").string();
}

TEST(Eval, MeasuresAPolicyInAnEnvironment) {
  TemporaryDirectory folder;
  std::string model = make_policy(folder);
  std::string arguments =
      "eval --model " + model + " --env frozen_grid --episodes 12 --samples 4 --k 1,4 --seed 5";
  auto result = run_binary(arguments + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json out = json::parse(result.out);
  EXPECT_EQ(out["prompts"], 12);
  EXPECT_EQ(out["episodes"], 48);
  EXPECT_EQ(out["failed"], 0);
  for (const char* name : {"reward", "success"}) {
    EXPECT_LE(out[name]["low"], out[name]["mean"]) << name;
    EXPECT_GE(out[name]["high"], out[name]["mean"]) << name;
  }
  EXPECT_EQ(out["pass_at_k"]["1"]["mean"], out["success"]["mean"]);
  EXPECT_GE(out["pass_at_k"]["4"]["mean"], out["pass_at_k"]["1"]["mean"]);

  // One prompt: its reward has no interval, and its success still has one.
  auto one = run_binary("eval --model " + model + " --env frozen_grid --episodes 1 --max-turns 1");
  EXPECT_NE(one.out.find("   the same for every prompt\n"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("pass@1     0.0000   95 % interval 0.0000 to 0.79"), std::string::npos)
      << one.out;

  // The numbers depend on the seed and on nothing else.
  auto numbers = [](const BinaryResult& run) {
    json row = json::parse(run.out);
    row.erase("seconds");
    return row;
  };
  EXPECT_EQ(numbers(run_binary(arguments + " --json --threads 1 --env-threads 3")),
            numbers(result));
  EXPECT_NE(run_binary(arguments + " --rows").out,
            run_binary("eval --model " + model +
                       " --env frozen_grid --episodes 12 --samples 4 --seed 6 --rows")
                .out);
  EXPECT_EQ(rows_of(run_binary(arguments + " --rows").out).size(), 48u);
}

TEST(Eval, ScoresADatasetWithItsVerifier) {
  auto result = run_binary(
      "eval --model " + kStories + " --env text --settings verifier=text_rules --dataset " + kData +
      "/prompts/tinystories_held_out.jsonl --episodes 6 --max-action-tokens 24 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json out = json::parse(result.out);
  EXPECT_EQ(out["prompts"], 6);
  EXPECT_EQ(out["failed"], 0);
  EXPECT_GT(out["mean_sampled_tokens"], 1);
  EXPECT_LE(out["mean_sampled_tokens"], 24);
}

// The model writes stories, so what counts is that its answers are scored.
TEST(Eval, KnowsEvaluationSetsByName) {
  TemporaryDirectory folder;
  folder.write("countdown.jsonl", "{\"target\": 98, \"nums\": [44, 19, 35]}\n");
  folder.write("game24.csv", "Rank,Puzzles\n1,1 1 4 6\n");
  for (const auto& [suite, file] :
       {std::pair<std::string, std::string>("gsm8k", kData + "/prompts/gsm8k_held_out.jsonl"),
        {"countdown", (folder / "countdown.jsonl").string()},
        {"game24", (folder / "game24.csv").string()}}) {
    const auto result =
        run_binary("eval --model " + kStories + " --suite " + suite + " --dataset " + file +
                   " --episodes 1 --samples 3 --max-action-tokens 12 --json");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out["dataset"], suite);
    EXPECT_EQ(out["episodes"], 3) << suite;
    EXPECT_EQ(out["failed"], 0) << out;
    EXPECT_TRUE(out["metrics"].contains("formatted")) << out;
    EXPECT_LE(out["mean_sampled_tokens"], 12);
  }
  EXPECT_EQ(run_binary("eval --model " + kStories + " --suite gsm8k").exit_code, 2);
}

// Stories are no programs, but they are run.
TEST(Eval, RunsThePrograms) {
  TemporaryDirectory folder;
  folder.write("rows.jsonl",
               "{\"prompt\": \"Write a program.\", \"language\": \"sh\", \"tests\": [{\"stdin\": "
               "\"\", \"stdout\": \"three\"}]}\n");
  const std::string arguments =
      "eval --model " + kStories + " --env text --settings verifier=program --dataset " +
      (folder / "rows.jsonl").string() + " --max-action-tokens 8 --samples 4 --json";
  auto result = run_binary(arguments);
  if (result.err.find("this machine cannot test programs") != std::string::npos)
    GTEST_SKIP() << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json out = json::parse(result.out);
  EXPECT_EQ(out["episodes"], 4);
  EXPECT_EQ(out["failed"], 0);
  EXPECT_EQ(out["reward"]["mean"], 0);
  EXPECT_EQ(out["metrics"]["over_deadline"], 0) << out;

  folder.write("rows.jsonl", "{\"prompt\": \"Write.\", \"language\": \"sh\", \"tests\": []}\n");
  EXPECT_EQ(run_binary(arguments).err,
            "error: " + (folder / "rows.jsonl").string() +
                ":1: \"tests\" must be a list of at least one {\"stdin\": TEXT, \"stdout\": TEXT} "
                "(for the verifier program)\n");
}

TEST(Eval, NamesWhatDoesNotFit) {
  TemporaryDirectory folder;
  std::string model = make_policy(folder);
  auto error = [&](const std::string& arguments) {
    auto result = run_binary("eval --model " + model + " " + arguments);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_NE(error("--env frozen_gird").find("frozen_grid"), std::string::npos);
  EXPECT_EQ(error("--env text"),
            "error: environment text: verifier is missing (who scores the answers, for example "
            "math)\n");
  EXPECT_EQ(error("--env text --settings verifier=number"),
            "error: --env text needs --dataset FILE, a JSONL file with a prompt in each row\n");
  EXPECT_EQ(error("--env frozen_grid --dataset x.jsonl"),
            "error: --dataset has no effect: frozen_grid draws its own tasks. Remove it.\n");
  EXPECT_EQ(error("--env frozen_grid --settings size"),
            "error: --settings size: a pair is written name=value, for example size=6\n");
  EXPECT_EQ(error("--env frozen_grid --k 8 --samples 4"),
            "error: --k 8 needs at least as many samples of each prompt; --samples is 4. Try "
            "--samples 8.\n");
  EXPECT_NE(error("--env frozen_grid --max-context-tokens 999").find("the model has 256 positions"),
            std::string::npos);
  EXPECT_EQ(error("--env frozen_grid --max-context-tokens 1"),
            "error: --max-context-tokens is 1; a prompt and its answer need at least 2\n");
  EXPECT_NE(error("--env frozen_grid --episodes 3 --max-context-tokens 2")
                .find("all 3 episodes of the environment frozen_grid failed, so there is no score. "
                      "The first: the prompt has "),
            std::string::npos);
  auto words = run_binary("eval --model " + model + " --env calculator");
  EXPECT_EQ(words.exit_code, 2);
  EXPECT_NE(words.err.find("is not in the vocabulary"), std::string::npos) << words.err;
}

TEST(Summarise, LeavesFailuresOutAndCountsThem) {
  std::vector<EvaluatedEpisode> episodes = {
      {.prompt = 0, .sample = 0, .reward = 1, .success = true},
      {.prompt = 0, .sample = 1, .reward = 0},
      {.prompt = 1, .sample = 0, .failed = true, .failure = "it rained"},
      {.prompt = 1, .sample = 1, .reward = 0},
      {.prompt = 2, .sample = 0, .failed = true},
      {.prompt = 2, .sample = 1, .failed = true}};
  EvaluationSummary summary = summarise(episodes, {1, 2}, 0);
  EXPECT_EQ(summary.episodes, 6);
  EXPECT_EQ(summary.failed, 3);
  EXPECT_EQ(summary.failure, "it rained");
  EXPECT_EQ(summary.prompts, 2);
  EXPECT_DOUBLE_EQ(summary.reward.mean, 0.25);  // of the prompts' means 0.5 and 0
  ASSERT_EQ(summary.pass_at_k.size(), 2u);
  EXPECT_DOUBLE_EQ(summary.pass_at_k[0].second.mean, 0.25);
  EXPECT_DOUBLE_EQ(summary.pass_at_k[1].second.mean, 1);  // only prompt 0 has two scored samples
  EXPECT_EQ(summarise({}, {1}, 0).prompts, 0);
}

TEST(Generate, ContinuesAPromptGreedily) {
  auto text = run_binary("model generate --model " + kStories +
                         " --prompt 'Once upon a time' --temperature 0 --max-new-tokens 12");
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("there was"), std::string::npos) << text.out;
  auto row = rows_of(run_binary("model generate --json --model " + kStories +
                                " --prompt 'Once upon a time' --temperature 0 --max-new-tokens 12")
                         .out)[0];
  EXPECT_EQ(row["text"].get<std::string>() + "\n", text.out);
  EXPECT_EQ(row["output_ids"].size(), 12u);
  EXPECT_EQ(row["finish_reason"], "length");
}

TEST(Generate, TheSameSeedGivesTheSameTokensWhateverIsBesideThem) {
  std::string input =
      "{\"prompt\": \"Once upon a time\"}\n{\"prompt\": \"The dog\"}\n{\"input_ids\": [1, 403]}\n";
  std::string arguments =
      "model generate --model " + kStories + " --max-new-tokens 20 --samples 2 --seed 7";
  auto rows = rows_of(run_binary(arguments, input).out);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_NE(rows[0]["output_ids"], rows[1]["output_ids"]);
  auto alone =
      rows_of(run_binary(arguments + " --threads 1", "{\"prompt\": \"Once upon a time\"}\n").out);
  EXPECT_EQ(alone[0], rows[0]);
  EXPECT_EQ(alone[1], rows[1]);
  auto other = rows_of(
      run_binary("model generate --model " + kStories + " --max-new-tokens 20 --seed 8", input)
          .out);
  EXPECT_NE(other[0]["output_ids"], rows[0]["output_ids"]);
}

TEST(Generate, SampledLogprobsAreThoseOfScore) {
  auto row =
      rows_of(run_binary("model generate --model " + kStories + " --seed 3 --max-new-tokens 30",
                         "{\"input_ids\": [1, 403, 407]}\n")
                  .out)[0];
  json ids = {1, 403, 407};
  for (const auto& id : row["output_ids"]) ids.push_back(id);
  auto scored =
      rows_of(run_binary("model score --model " + kStories, json{{"input_ids", ids}}.dump())
                  .out)[0]["logprobs"];
  ASSERT_EQ(scored.size(), row["logprobs"].size() + 2);
  for (size_t i = 0; i < row["logprobs"].size(); ++i)
    EXPECT_EQ(row["logprobs"][i].get<float>(), scored[i + 2].get<float>())
        << "token " << i << ": not the same bits";
}

// Its own files are rounded: here to bfloat16, norms too.
TEST(Generate, OfACheckpointReadsWhatSampled) {
  const TemporaryDirectory folder;
  const std::string checkpoint = (folder / "step_000001").string();
  const ModelConfig config = read_model_config(kStories);
  const ParameterLayout layout(config);
  Parameters trained(layout);
  load_parameters(kStories, config, trained);
  // Norms that bfloat16 does not hold.
  for (const ParameterInfo& info : trained.layout().entries())
    if (info.shape.size() == 1)
      for (float& value : trained.vector(info.name)) value *= 1.001f;
  save_model(folder / "trained", config, trained);
  ModelForm form = read_model_form(kStories);
  form.config = with_dtype(form.config, "bfloat16");
  for (ModelForm::File& file : form.files)
    for (ModelForm::Tensor& tensor : file.tensors) tensor.dtype = Dtype::kBF16;
  EXPECT_FALSE(save_model(checkpoint, config, trained, form));
  const auto scores = [&](const std::string& model, const std::string& more = "") {
    const auto result =
        run_binary("model score --model " + model + more, R"({"input_ids": [1, 403]})");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string sampled = scores((folder / "trained").string(), " --compute bf16");
  EXPECT_NE(scores(checkpoint, " --compute bf16"), sampled);
  const std::filesystem::path master = std::filesystem::path(checkpoint) / kMasterFile;
  save_parameters(master, trained, {{kComputeKey, "bf16"}});
  EXPECT_EQ(scores(checkpoint), sampled);
  // The run had model.compute=f32.
  save_parameters(master, trained, {{kComputeKey, "f32"}});
  EXPECT_EQ(scores(checkpoint), scores((folder / "trained").string()));
  EXPECT_EQ(scores(checkpoint, " --compute bf16"), sampled);
}

TEST(Generate, NamesAPromptThatDoesNotFit) {
  auto long_prompt = run_binary("model generate --model " + kStories,
                                json{{"input_ids", std::vector<int>(512, 1)}}.dump());
  EXPECT_EQ(long_prompt.exit_code, 2);
  EXPECT_EQ(long_prompt.err,
            "error: stdin:1: the prompt has 512 tokens; the model has 512 positions, one of which "
            "is left for the answer. Shorten it.\n");
  EXPECT_EQ(run_binary("model generate --model " + kStories, "{\"prompt\": 5}").err,
            "error: stdin:1: \"prompt\" is number; it must be a text\n");
  EXPECT_EQ(run_binary("model generate --model " + kStories, "{\"input_ids\": []}").err,
            "error: stdin:1: the prompt is empty; it must have at least one token\n");
}

TEST(Generate, RefusesATokenizerOfAnotherModel) {
  TemporaryDirectory folder;
  std::string model = make_policy(folder);
  std::filesystem::copy_file(kStories + "/tokenizer.json", model + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  auto result = run_binary("model generate --model " + model + " --prompt a");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("They belong to different models."), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tailrace
