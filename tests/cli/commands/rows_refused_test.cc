// What a launch says of rows of preferences, of reward models and of stages that are not as they
// must be: one message with the place, exit status 2, and no run directory.
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models";

constexpr std::string_view kGood =
    "{\"prompt\": \"Once\", \"chosen\": \" upon a time\", \"rejected\": \" there was\"}\n"
    "{\"prompt\": \"Tom\", \"chosen\": \" was happy\", \"rejected\": \" cat\"}\n";
constexpr std::string_view kUnpaired =
    "{\"prompt\": \"Once\", \"completion\": \" upon\", \"label\": true}\n"
    "{\"prompt\": \"Tom\", \"completion\": \" was\", \"label\": true}\n";

class RowsRefused : public testing::Test {
 protected:
  RowsRefused() {
    folder_.write("pairs.jsonl", std::string(kGood));
    folder_.write("unpaired.jsonl", std::string(kUnpaired));
    folder_.write("prompts.jsonl", "{\"prompt\": \"Once\"}\n");
  }

  // `config`: begins in line 4. `told`: each in what is said.
  void expect_refused(const std::string& config, const std::vector<std::string>& told,
                      const std::string& model = kModels / "stories260K",
                      const std::string& more = "") {
    folder_.write("a.yaml", fmt::format("model: {{path: {}}}\n"
                                        "rollout: {{max_context_tokens: 128}}\n"
                                        "train: {{threads: 1, microbatch_tokens: 128}}\n{}",
                                        model, config));
    const auto result =
        run_binary("launch a.yaml --run-dir run " + more, "", folder_.path().string());
    EXPECT_EQ(result.exit_code, 2) << config << result.out << result.err;
    for (const std::string& part : told)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << "\nin " << result.err;
    EXPECT_EQ(result.err.find("error: "), 0u) << result.err;
    EXPECT_EQ(result.err.find("error: ", 1), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(folder_ / "run")) << config;
  }
  // Of a file of preferences.
  void expect_refused_rows(const std::string& rows, const std::vector<std::string>& told,
                           const std::string& keys = "") {
    folder_.write("rows.jsonl", rows);
    expect_refused(fmt::format("preference: {{data: rows.jsonl{}}}\n", keys), told);
  }
  void expect_refused_reward(const std::string& keys, const std::vector<std::string>& told) {
    expect_refused("env: {name: text, dataset: prompts.jsonl}\nreward: {" + keys + "}\n", told);
  }
  // A reward model that `change` has changed.
  template <class Change>
  fs::path reward_model(const std::string& name, const Change& change) {
    const fs::path folder = folder_ / name;
    fs::create_directory(folder);
    for (const auto& entry : fs::directory_iterator(kModels / "reward-tiny")) {
      std::string text = read_file(entry.path()).value();
      change(entry.path().filename().string(), text);
      std::ofstream(folder / entry.path().filename(), std::ios::binary) << text;
    }
    return folder;
  }

  TemporaryDirectory folder_;
};

TEST_F(RowsRefused, ARowIsNamedByItsLine) {
  const std::string place = "rows.jsonl:3: ";
  const std::string good(kGood);
  expect_refused_rows("{", {"error: a.yaml:4: preference.data: "});
  expect_refused_rows(good + R"({"prompt": "a", "chosen": " b", "rejected": " b"})",
                      {place + "\"chosen\" and \"rejected\" are equal", "Leave it out"});
  expect_refused_rows(good + R"({"prompt": "a", "chosen": "", "rejected": " b"})",
                      {place + "\"chosen\" is empty; it must be an answer"});
  expect_refused_rows(good + "{nope", {place + "the line is not valid JSON"});
  expect_refused_rows(good + R"({"prompt": "a", "rejected": " b"})",
                      {place + "the row has prompt, rejected, and no \"chosen\"; a row is one of"});
  expect_refused_rows(good + std::string(kUnpaired),
                      {place + "the row has one completion, and no pair",
                       "preference with loss kto takes such rows"});
}

TEST_F(RowsRefused, AFileIsNamedByItsKey) {
  const std::string place = "error: a.yaml:4: preference.";
  expect_refused_rows("", {place + "data: ", "rows.jsonl: the file has no row"});
  expect_refused_rows(
      std::string(kUnpaired),
      {place + "data: ", "rows.jsonl: every label is true; loss kto needs rows of both"},
      ", loss: kto");
  expect_refused("preference: {data: pairs.jsonl, eval_data: gone.jsonl}\n",
                 {place + "eval_data: cannot open ", "gone.jsonl: No such file or directory"});
  expect_refused("reward_model: {data: unpaired.jsonl}\n",
                 {"a.yaml:4: reward_model.data: ", "unpaired.jsonl:1: the row has one completion"});
}

TEST_F(RowsRefused, RowsThatAreTooLongSayWhatToRaise) {
  std::string prompt;
  for (int i = 0; i < 80; ++i) prompt += "Tom saw a cat. ";
  const auto pair = [](const std::string& text) {
    return fmt::format(R"({{"prompt": "{}", "chosen": " b", "rejected": " c"}})", text);
  };
  expect_refused_rows(pair(prompt), {"rows.jsonl:1: the row has ", "rollout.max_context_tokens",
                                     "try preference.too_long=drop, or cut"});
  expect_refused_rows(pair(prompt),
                      {"rows.jsonl: no row is left; there is nothing to learn (1 row was too long "
                       "and dropped). Raise rollout.max_context_tokens"},
                      ", too_long: cut");
  // It fits a context, and both halves fit no pass.
  expect_refused_rows(
      pair(prompt.substr(0, 240)),
      {"a.yaml:3: train.microbatch_tokens is 128, and both halves of a pair go into one pass: the "
       "longest of preference.data has ",
       "Try "});
}

TEST_F(RowsRefused, KtoNeedsAnUpdateOfTwo) {
  expect_refused("preference: {data: pairs.jsonl, loss: kto, batch_rows: 1}\n",
                 {"a.yaml:4: preference.batch_rows is 1, but kto compares", "Try 32."});
}

TEST_F(RowsRefused, AFolderThatIsNoRewardModelSaysWhy) {
  const auto model = [&](const std::string& name, const auto& change) {
    return "model: " + reward_model(name, change).string();
  };
  const std::string place = "error: a.yaml:5: reward.model: ";
  // Another tokenizer than that of the weights.
  expect_refused_reward(model("vocabulary",
                              [](const std::string& file, std::string& text) {
                                const std::string other = std::string(TAILRACE_SOURCE_DIR) +
                                                          "/tests/data/tokenizers/minimind/";
                                if (file.starts_with("tokenizer"))
                                  text = read_file(other + file).value();
                              }),
                        {place, "vocabulary: the tokenizer has ", "They belong to different"});
  expect_refused_reward(model("two",
                              [](const std::string& file, std::string& text) {
                                if (file == "config.json")
                                  text.insert(text.find('{') + 1, "\"num_labels\": 2,");
                              }),
                        {place, "num_labels is 2; a reward model has 1 output"});
  // A float whose bits are all ones is NaN.
  expect_refused_reward(model("nan",
                              [](const std::string& file, std::string& text) {
                                if (file != "model.safetensors") return;
                                std::memset(text.data() + text.size() - 64, 0xff, 64);
                              }),
                        {"reward.model has no verdict on a first episode", "nan at element ",
                         "these weights cannot be used"});
  expect_refused_reward(
      "model: " + (kModels / "stories260K").string(),
      {place, "LlamaForCausalLM is no reward model; it gives tokens, not scores"});
}

TEST_F(RowsRefused, ARewardModelIsNoPolicyAndStandsAlone) {
  const std::string model = kModels / "reward-tiny";
  expect_refused("preference: {data: pairs.jsonl}\n",
                 {"a.yaml:1: model.path: ", "is a reward model; it gives scores, not tokens"},
                 model);
  expect_refused_reward("model: " + model + ", command: [python3, a.py]",
                        {"a.yaml:5: reward.model and reward.command are both given"});
  expect_refused(
      "env: {name: text, dataset: prompts.jsonl}\nreward_model: {data: pairs.jsonl}\n"
      "reward: {stage: reward_model, model: " +
          model + "}\n",
      {"a.yaml:6: reward.stage and reward.model are both given"});
}

TEST_F(RowsRefused, AStageIsNamedByItsItem) {
  const auto item = [](const std::string& text) { return "stages:\n  - " + text + "\n"; };
  const std::string pairs = "preference: {data: pairs.jsonl}\n    ";
  expect_refused(item("preferences: {data: pairs.jsonl}"),
                 {"a.yaml:5: stages[0].preferences is not a known key; the nearest is "
                  "stages[0].preference"});
  for (const char* until : {"5", "5 steps"})
    expect_refused(item(pairs + "until: " + until),
                   {fmt::format("a.yaml:6: stages[0].until is '{}'; it must be like '2 epochs' or "
                                "'200 updates'.",
                                until)});
  expect_refused(item("reward_model: {data: pairs.jsonl}") + "lora: {rank: 4}\n",
                 {"a.yaml:5: stages[0].reward_model.data is of a whole reward model",
                  "Make it a run of its own."});
}

// In a build with CUDA and on a machine with a GPU a reward model keeps the run from it.
TEST_F(RowsRefused, ARewardModelIsTrainedOnTheCpuAlone) {
  expect_refused("reward_model: {data: pairs.jsonl}\n", {"model.device is cuda"},
                 kModels / "stories260K", "model.device=cuda");
}

}  // namespace
}  // namespace tailrace
