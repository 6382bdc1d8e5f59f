// A run whose prompts go through a chat template, from a model folder that has one.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/chat/prompt_format.h"
#include "core/model/model.h"
#include "core/model/parameter_files.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

using nlohmann::json;

const fs::path kTokenizers = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers";

// Random weights under the tokenizer of MiniMind, with ChatML's special tokens.
void write_model(const fs::path& folder, const fs::path& chat_template) {
  const auto tokenizer = text::load_tokenizer(kTokenizers / "minimind");
  ModelConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = tokenizer->vocab_size();
  config.max_positions = 512;
  config.tie_embeddings = true;
  config.eos_tokens = {tokenizer->id_of("<|endoftext|>")};
  const Model model(config);
  Parameters parameters(model.layout());
  init_parameters(model.config(), 1, parameters);
  save_model(folder, config, parameters);
  fs::copy(kTokenizers / "minimind/tokenizer.json", folder / "tokenizer.json");
  if (!chat_template.empty()) fs::copy(chat_template, folder / text::kTemplateFile);
}

class LaunchChat : public LaunchTest {
 protected:
  LaunchChat() {
    write_model(folder_ / "model", kTokenizers / "templates/chatml.jinja");
    write_model(folder_ / "base", {});
    std::ofstream(folder_ / "rows.jsonl")
        << R"({"prompt": "Tell of a dog.", "words": ["dog"]})"
        << "\n"
        << R"({"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell of <|im_end|>."}], "words": ["end"]})"
        << "\n";
    std::ofstream(folder_ / "tiny.yaml") << R"(
run: {name: chat, seed: 3, steps: 2}
model: {path: model}
env: {name: text, dataset: rows.jsonl, eval_dataset: rows.jsonl, settings: {verifier: text_rules}}
rollout: {prompts_per_step: 2, group_size: 2, max_action_tokens: 12, max_context_tokens: 128, workers: 1}
train: {microbatch_tokens: 1024, threads: 1}
eval: {prompts: 2, interval_steps: 2}
algo: {filter_zero_signal: none}
)";
  }
  std::string refusal(const std::string& overrides) {
    const auto result =
        run_binary("launch --dry-run " + (folder_ / "tiny.yaml").string() + " " + overrides);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  }
  std::string model() const { return (folder_ / "model").string(); }
};

TEST_F(LaunchChat, PromptsGoThroughTheTemplateAndCheckpointsCarryIt) {
  std::ofstream(folder_ / "mine.jinja")
      << "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
         "<|im_start|>assistant: ";
  const std::string mine = "chat.template=" + (folder_ / "mine.jinja").string();
  start_run("run", {mine, "chat.system=You write."});
  expect_done();
  expect_each_step_once("run", 2);
  const fs::path checkpoint = paths().checkpoints() / "step_000002";
  EXPECT_EQ(read_file(checkpoint / text::kTemplateFile).value(),
            read_file(folder_ / "mine.jinja").value());
  // Its own evaluation again, number for number: the checkpoint is read as the run read it.
  fs::remove(folder_ / "mine.jinja");
  const auto again = run_binary("eval --json --run " + paths().root.string());
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows);
  const double* last = nullptr;
  for (const MetricsRow& row : rows.value())
    if (const double* value = row.find("eval/reward")) last = value;
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(json::parse(again.out).at("reward").at("mean").get<double>(), *last);
}

// Turns of a conversation that a killed worker had stored: who goes on behind them has its tokens,
// those of the template among them.
TEST_F(LaunchChat, WhatGoesOnFromStoredTurnsTrainsTheSameBitForBit) {
  constexpr int kTurnSteps = 6;
  std::ofstream(folder_ / "tiny.yaml") << R"(
run: {name: chat, seed: 3, steps: 6}
model: {path: model}
env: {name: paced, settings: {turns: 4, latency_ms: 40}}
rollout: {prompts_per_step: 2, group_size: 4, max_action_tokens: 6, max_context_tokens: 400, workers: 2,
          store_turns_tokens: 1}
train: {microbatch_tokens: 2048, threads: 1}
# Of rewards there is none to speak of: the loss is that of the tokens themselves.
algo: {filter_zero_signal: none, entropy_coef: 0.1}
optim: {lr: 0.01}
)";
  start_run("other");
  expect_done();
  start_run("run");
  for (const int64_t step : {0, 2, 4}) {
    ASSERT_TRUE(wait_until([&] { return has_step(step); })) << output();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    for (const pid_t pid : workers("rollout")) ::kill(pid, SIGKILL);
  }
  expect_done();
  EXPECT_GT(sum_of_rows("rollout/resumed_tokens"), 0) << "nothing had been stored";
  EXPECT_EQ(final_digest("run", kTurnSteps), final_digest("other", kTurnSteps));
  EXPECT_NE(final_digest("other", kTurnSteps), final_digest("other", kTurnSteps - 1))
      << "nothing was trained";
}

// Calls of a tool through a real template: the demonstrator's are read, answered by messages of the
// role tool, and trained on; what a policy from random weights writes holds none.
TEST_F(LaunchChat, ToolsAreCalledThroughTheTemplate) {
  // Its added tokens are those of another tokenizer.
  json config = json::parse(read_file(kTokenizers / "qwen/tokenizer_config.qwen2.5.json").value());
  config.erase("added_tokens_decoder");
  std::ofstream(folder_ / "model/tokenizer_config.json") << config.dump();
  fs::remove(folder_ / "model" / text::kTemplateFile);
  std::ofstream(folder_ / "tiny.yaml") << R"(
run: {name: chat, seed: 3, steps: 1}
model: {path: model}
env: {name: shopping, settings: {form: hermes, demo_malformed: 0, demo_parallel: 1}}
rollout: {prompts_per_step: 2, group_size: 2, max_action_tokens: 24, max_context_tokens: 512, workers: 1}
sft: {demonstrations: 8}
train: {microbatch_tokens: 2048, threads: 1}
algo: {filter_zero_signal: none}
)";
  start_run("run");
  expect_done();
  expect_each_step_once("run", 1);
  EXPECT_NE(output().find("tokens, success 1.00"), std::string::npos) << output();
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows);
  const MetricsRow& row = rows.value().back();
  ASSERT_NE(row.find("env/tool_calls"), nullptr);
  EXPECT_EQ(*row.find("env/tool_calls"), 0);
  EXPECT_EQ(*row.find("env/malformed_calls"), 0);
  EXPECT_GT(*row.find("rollout/turns/mean"), 1);
}

TEST_F(LaunchChat, GenerateWritesMessagesAndTheirWordsStayWords) {
  const std::string rows = R"({"messages": [{"role": "user", "content": "Tell of <|im_end|>."}]})"
                           "\n"
                           R"({"prompt": "Tell of a dog."})";
  const auto tokenizer = text::load_tokenizer(folder_ / "model");
  const auto format = chat::PromptFormat::of({}, folder_ / "model", *tokenizer);
  const auto counts = [&](const std::string& flags) {
    const auto result = run_binary(
        "model generate --json --max-new-tokens 1 --model " + model() + " " + flags, rows);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<int64_t> found;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      found.push_back(json::parse(line).at("prompt_tokens").get<int64_t>());
    return found;
  };
  const auto size = [&](const char* text) {
    return std::ssize(format.first({.text = text}).value());
  };
  EXPECT_EQ(counts("--chat"),
            (std::vector<int64_t>{size("Tell of <|im_end|>."), size("Tell of a dog.")}));
  EXPECT_EQ(counts("")[1], std::ssize(tokenizer->encode("Tell of a dog.", {.framed = true})));
  const auto refused =
      run_binary("model generate --chat --prompt a --model " + (folder_ / "base").string());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--chat-template FILE"), std::string::npos) << refused.err;
}

// Behind an answer no other answer begins: the tokens are those that supervised training has.
TEST_F(LaunchChat, TokenizeBeginsAnAnswerBehindAQuestionAlone) {
  const auto text = [&](const std::string& messages) {
    const auto ids =
        run_binary("model tokenize --tokenizer " + model(), "{\"messages\": [" + messages + "]}");
    EXPECT_EQ(ids.exit_code, 0) << ids.err;
    const auto decoded =
        run_binary("model tokenize --decode --special --tokenizer " + model(), ids.out);
    return json::parse(decoded.out).at("text").get<std::string>();
  };
  const std::string question = R"({"role": "user", "content": "Hi"})";
  const std::string both = question + R"(, {"role": "assistant", "content": "Hello"})";
  const std::string asked = "<|im_start|>user\nHi<|im_end|>\n";
  EXPECT_TRUE(text(question).ends_with(asked + "<|im_start|>assistant\n")) << text(question);
  EXPECT_TRUE(text(both).ends_with(asked + "<|im_start|>assistant\nHello<|im_end|>")) << text(both);
}

TEST_F(LaunchChat, ToolsOfARowAreWritten) {
  const auto ids = [&](const std::string& row) {
    const auto result = run_binary("model tokenize --tokenizer " + model(), row);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string message = R"("messages": [{"role": "user", "content": "Tell"}])";
  const std::string plain = R"({"messages": [{"role": "user", "content": "add sub Tell"}]})";
  const std::string functions = R"([{"function": {"name": "add"}}, {"function": {"name": "sub"}}])";
  const std::string row = "{" + message + ", \"tools\": " + functions + "}";
  const auto refused = run_binary("model tokenize --tokenizer " + model(), row);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("stdin:1: it has tools, which this chat template leaves out"),
            std::string::npos)
      << refused.err;
  std::ofstream(folder_ / "model" / text::kTemplateFile)
      << "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}";
  EXPECT_EQ(ids(row), ids(plain));
  // As tables keep them.
  EXPECT_EQ(ids("{" + message + ", \"tools\": " + json(functions).dump() + "}"), ids(plain));
  EXPECT_EQ(ids("{" + message + ", \"tools\": null}"),
            ids(R"({"messages": [{"role": "user", "content": "Tell"}]})"));
  const auto beside = run_binary("model generate --model " + model(),
                                 R"({"prompt": "a", "tools": )" + functions + "}");
  EXPECT_EQ(beside.exit_code, 2);
  EXPECT_NE(beside.err.find("stdin:1: tools beside a prompt"), std::string::npos) << beside.err;

  // A dataset's, before its run and in it.
  const std::string of_dataset =
      R"({"prompt": "Tell", "max_words": 9, "tools": )" + functions + "}\n";
  std::ofstream(folder_ / "rows.jsonl") << of_dataset << of_dataset;
  start_run("run");
  expect_done();
  EXPECT_NE(refusal("chat.style=plain").find("rows.jsonl:1: the prompt: it has tools"),
            std::string::npos);
}

// The run has a copy.
TEST_F(LaunchChat, ARunGoesOnWithoutTheFileOfItsTemplate) {
  const fs::path mine = folder_ / "mine.jinja";
  fs::copy(kTokenizers / "templates/chatml.jinja", mine);
  start_run("run", {"chat.template=" + mine.string()});
  expect_done();
  const std::string again = "launch --run-dir " + paths().root.string() + " run.steps=";
  fs::remove(mine);
  const auto without = run_binary(again + "3");
  EXPECT_EQ(without.exit_code, 0) << without.err;
  std::ofstream(mine) << "{% for";
  const auto other = run_binary(again + "4");
  EXPECT_EQ(other.exit_code, 0) << other.err;
  expect_each_step_once("run", 4);
}

TEST_F(LaunchChat, ATemplateThatCannotBeReadHindersOnlyMessages) {
  std::ofstream(folder_ / "model" / text::kTemplateFile) << "{% for";
  EXPECT_EQ(run_binary("model tokenize --tokenizer " + model(), R"({"text": "a"})").exit_code, 0);
  const auto refused = run_binary("model tokenize --tokenizer " + model(),
                                  R"({"messages": [{"role": "user", "content": "a"}]})");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("chat_template.jinja:1"), std::string::npos) << refused.err;
}

TEST_F(LaunchChat, WhatCannotBeWrittenIsRefusedBeforeTheRun) {
  const std::string base = "model.path=" + (folder_ / "base").string();
  // The second row is a list of messages.
  EXPECT_NE(refusal(base).find("rows.jsonl:2: the prompt: it is a list of messages"),
            std::string::npos)
      << refusal(base);
  EXPECT_NE(refusal(base + " chat.system=x").find("chat.system has no effect"), std::string::npos);
  EXPECT_NE(refusal("chat.style=plain chat.system=x").find("chat.system has no effect"),
            std::string::npos);
  EXPECT_NE(refusal("chat.variables.messages=x").find("chat.variables"), std::string::npos);
  std::ofstream(folder_ / "bad.jinja") << "{% for m in messages %}";
  const std::string bad = refusal("chat.template=" + (folder_ / "bad.jinja").string());
  EXPECT_NE(bad.find("chat.template: "), std::string::npos) << bad;
  EXPECT_NE(bad.find("bad.jinja:1: "), std::string::npos) << bad;
  EXPECT_NE(refusal("chat.template=none.jinja").find("none.jinja"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
