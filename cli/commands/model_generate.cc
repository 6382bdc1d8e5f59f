#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/chat_flags.h"
#include "cli/commands/commands.h"
#include "cli/commands/jsonl_input.h"
#include "cli/commands/sampling_flags.h"
#include "cli/eval/loaded_model.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/random.h"
#include "core/config/flags.h"
#include "core/generator_driver.h"
#include "core/model/adapter_files.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/stop_tokens.h"

namespace tailrace {
namespace {

struct GenerateArguments {
  std::string model, prompt;
  bool has_prompt = false, json = false, no_special = false, chat = false;
  chat::ChatOptions chat_options;
  std::vector<std::string> chat_variables;
  SamplingOptions sampling;
  int64_t max_new_tokens = 64, samples = 1, kv_cache_mb = 512;
  std::vector<std::string> stop;
  uint64_t seed = 0;
  ComputeFlags compute;
};

struct Prompt {
  std::string where;  // for messages
  std::vector<TokenId> ids;
};

Prompt written(std::string where, Result<std::vector<TokenId>> ids) {
  if (!ids) throw UserError("{}: {}", where, ids.failure().message);
  return {std::move(where), std::move(ids).value()};
}

// A list of messages, as "messages" or as the prompt.
auto chat_of(const nlohmann::ordered_json& row) {
  const auto messages = row.find("messages");
  if (messages != row.end()) return messages;
  const auto prompt = row.find("prompt");
  return prompt != row.end() && prompt->is_array() ? prompt : row.end();
}

// A text as it is, or by --chat as a message of the user's.
Prompt encode_text(std::string where, const std::string& text, std::string tools,
                   const GenerateArguments& arguments, const chat::PromptFormat& format) {
  if (arguments.chat)
    return written(where, format.first({.text = text, .tools = std::move(tools)}));
  if (!tools.empty())
    throw UserError(
        "{}: tools beside a prompt that no chat template writes; give --chat, or messages", where);
  return {where, format.tokenizer().encode(text, {.framed = !arguments.no_special})};
}

std::vector<Prompt> encode_prompts(const GenerateArguments& arguments,
                                   const chat::PromptFormat& format) {
  if (arguments.has_prompt)
    return {encode_text("--prompt", arguments.prompt, "", arguments, format)};
  std::vector<Prompt> prompts;
  JsonlInput input(std::cin, "stdin");
  while (auto row = input.next()) {
    std::string tools = json_of_field(*row, "tools");
    if (row->contains("input_ids"))
      prompts.push_back({input.where(), input.ids(*row, "input_ids")});
    else if (const auto messages = chat_of(*row); messages != row->end())
      prompts.push_back(written(input.where(), format.first({.messages = json_text(*messages),
                                                             .tools = std::move(tools)})));
    else
      prompts.push_back(encode_text(input.where(), input.text(*row, "prompt"), std::move(tools),
                                    arguments, format));
  }
  return prompts;
}

// The context that the prompts need; refuses those that leave no room for one token.
int64_t check_prompts(const std::vector<Prompt>& prompts, const GenerateArguments& arguments,
                      const ModelConfig& config) {
  int64_t longest = 0;
  for (const Prompt& prompt : prompts) {
    auto size = static_cast<int64_t>(prompt.ids.size());
    if (size == 0)
      throw UserError("{}: the prompt is empty; it must have at least one token", prompt.where);
    if (size >= config.max_positions)
      throw UserError(
          "{}: the prompt has {} tokens; the model has {} positions, one of which is left for the "
          "answer. "
          "Shorten it.",
          prompt.where, size, config.max_positions);
    for (TokenId id : prompt.ids)
      if (id >= config.num_ids())
        throw UserError("{}: token id {}; the model has ids below {}", prompt.where, id,
                        config.num_ids());
    longest = std::max(longest, size);
  }
  // No more than is used: blocks of the KV cache are counted by it.
  return std::min(config.max_positions, longest + arguments.max_new_tokens);
}

SamplingParams sampling_params(const GenerateArguments& arguments, const ModelConfig& config,
                               const chat::PromptFormat& format) {
  SamplingParams params = arguments.sampling.params();
  params.max_new_tokens = arguments.max_new_tokens;
  params.stop_strings = arguments.stop;
  params.stop_tokens = stop_tokens(config, format);
  return params;
}

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kAborted:
      return "aborted";
  }
  return "";
}

void print_answer(const Generation& answer, const Prompt& prompt, const text::Tokenizer& tokenizer,
                  bool json) {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  for (const GeneratedToken& token : answer.tokens) {
    ids.push_back(token.id);
    logprobs.push_back(token.logprob);
  }
  // The answer's part of the text is a difference: some tokenizers write a blank differently at the
  // start of a text.
  std::vector<TokenId> whole = prompt.ids;
  whole.insert(whole.end(), ids.begin(), ids.end());
  std::string before = tokenizer.decode(prompt.ids), after = tokenizer.decode(whole);
  std::string text =
      after.starts_with(before) ? after.substr(before.size()) : tokenizer.decode(ids);
  if (!json) {
    fmt::print("{}\n", text);
    return;
  }
  nlohmann::ordered_json row = {{"text", text},
                                {"output_ids", ids},
                                {"logprobs", logprobs},
                                {"finish_reason", reason_name(answer.reason)},
                                {"prompt_tokens", prompt.ids.size()}};
  fmt::print("{}\n", json_text(row));
}

// Each session has one answer, and its KV makes room for the next then.
class Answers : public AnswerSink {
 public:
  Answers(GeneratorDriver& driver, size_t count) : all(count), driver_(driver) {}

  SessionId open(size_t place) {
    const SessionId session = driver_.open(*this);
    places_[session] = place;
    return session;
  }
  void answered(Generation generation) override {
    driver_.release(generation.session);
    const size_t place = places_.at(generation.session);
    all[place] = std::move(generation);
  }

  std::vector<std::optional<Generation>> all;

 private:
  GeneratorDriver& driver_;
  std::map<SessionId, size_t> places_;
};

void generate(const GenerateArguments& arguments) {
  const ModelConfig config = read_policy_folder(arguments.model).config;
  const auto folder = tokenizer_folder(arguments.model);
  auto tokenizer = load_tokenizer_of(folder, config);
  const auto format = chat::PromptFormat::of(arguments.chat_options, folder, *tokenizer);
  if (arguments.chat && !format.has_template())
    throw UserError("--chat: {} has no chat template. Give one with --chat-template FILE.",
                    arguments.model);
  auto prompts = encode_prompts(arguments, format);
  if (prompts.empty()) return;

  EngineOptions options;
  options.max_context_tokens = check_prompts(prompts, arguments, config);
  options.kv_cache_mb = arguments.kv_cache_mb;
  // Weights last: what is wrong with a prompt is said before gigabytes are read.
  LoadedModel loaded(arguments.model, arguments.compute, options.max_context_tokens);
  SteadyClock clock;
  Engine engine(loaded.model(), tokenizer.get(), options, loaded.stream(), clock);
  // An engine begins frozen, and without weights it would never answer.
  engine.install(loaded.shared_weights(), 0);
  SamplingParams sampling = sampling_params(arguments, config, format);

  // Answer i is sample i % samples of prompt i / samples; they come in any order and are printed in
  // this one.
  auto samples = static_cast<size_t>(arguments.samples);
  GeneratorDriver driver(engine);
  Answers answers{driver, prompts.size() * samples};
  for (size_t i = 0; i < answers.all.size(); ++i)
    // The key is of prompt and sample: what else is generated does not change the numbers drawn.
    driver.submit({.session = answers.open(i),
                   .new_tokens = prompts[i / samples].ids,
                   .sampling = sampling,
                   .key = {mix({arguments.seed, i / samples, i % samples})}});
  size_t printed = 0;
  while (printed < answers.all.size()) {
    driver.step();
    // As soon as all before it are there, for who reads a pipe.
    for (; printed < answers.all.size() && answers.all[printed]; ++printed)
      print_answer(*answers.all[printed], prompts[printed / samples], *tokenizer,
                   arguments.json || !arguments.has_prompt);
  }
}

}  // namespace

void add_model_generate(Command& model) {
  auto arguments = std::make_shared<GenerateArguments>();
  Command& command = model.command("generate", "Continue prompts");
  command.option(
      "--model", arguments->model,
      {.help = "Hugging Face folder with its tokenizer", .value = "DIR", .required = true});
  command.option("--prompt", arguments->prompt, {.help = "one prompt; without it rows of stdin"});
  command.option("--json", arguments->json, {.help = "a JSON row even for --prompt"});
  command.option("--no-special", arguments->no_special,
                 {.help = "do not add the tokenizer's special tokens to the prompt"});
  command.option("--chat", arguments->chat,
                 {.help = "a prompt is a message of the user's, written by the chat template"});
  add_chat_flags(command, arguments->chat_options, arguments->chat_variables);
  add_sampling_flags(command, arguments->sampling);
  command.option("--max-new-tokens", arguments->max_new_tokens,
                 {.help = "at most so many tokens", .min = 1, .max = 1 << 30});
  command.option("--stop", arguments->stop,
                 {.help = "text that ends an answer; may be given several times"});
  command.option("--samples", arguments->samples,
                 {.help = "answers to each prompt", .min = 1, .max = 100000});
  command.option("--seed", arguments->seed, {.help = "of the sampling"});
  command.option("--kv-cache-mb", arguments->kv_cache_mb,
                 {.help = "memory of the KV cache (MiB)", .min = 1, .max = 1 << 24});
  add_compute_flags(command, arguments->compute);
  command.footer(
      "A row {\"prompt\": \"...\"}, {\"messages\": [{\"role\", \"content\"}, ...]} or "
      "{\"input_ids\": "
      "[...]} gives rows {\"text\",\n"
      "\"output_ids\", \"logprobs\", \"finish_reason\", \"prompt_tokens\"}. Messages, and "
      "the schemas under "
      "\"tools\", are written by the model's chat template. On one device the same "
      "seed gives the same "
      "tokens, whatever else is generated beside them.\n\n"
      "Example:\n"
      "  tailrace model generate --model tests/data/models/stories260K --prompt \"Once upon a "
      "time\" "
      "--temperature 0");
  command.action([arguments, &command] {
    // Asked of the option: an empty text is a prompt too.
    arguments->has_prompt = command.given("--prompt");
    set_variables(arguments->chat_options, arguments->chat_variables);
    generate(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
