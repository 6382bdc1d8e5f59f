#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/chat_flags.h"
#include "cli/commands/commands.h"
#include "cli/config/mistakes.h"
#include "cli/eval/loaded_model.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/base/join_texts.h"
#include "core/base/printable.h"
#include "core/chat/prompt_format.h"
#include "core/config/flags.h"
#include "core/model/adapter_files.h"
#include "core/model/model_config.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct ModelCheckArguments {
  std::string folder;
  chat::ChatOptions chat;
  std::vector<std::string> variables;
};

void model_line(std::string_view label, const std::string& text) {
  fmt::print("{:<12} {}\n", label, printable(text));
}

std::string shape_of(const ModelConfig& config) {
  std::string shape =
      fmt::format("{}, {} layers of {}, {} heads over {} of keys and values", config.architecture,
                  config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads);
  if (config.num_experts > 0)
    shape += fmt::format("; {} experts in {} of the layers, a token goes to {}", config.num_experts,
                         config.num_sparse_layers(), config.experts_per_token);
  return shape;
}

std::string numbers_of(const ModelConfig& config) {
  const ParameterLayout layout(config);
  std::string text = fmt::format("{} in {}", layout.num_parameters(),
                                 config.dtype == Dtype::kBF16  ? "bf16"
                                 : config.dtype == Dtype::kF16 ? "f16"
                                                               : "f32");
  if (layout.num_active_parameters() < layout.num_parameters())
    text += fmt::format(", of which a token goes through {}", layout.num_active_parameters());
  return text + ", all there and finite";
}

std::string vocabulary_text(const text::Tokenizer& tokenizer, const ModelConfig& config) {
  std::vector<std::string> ends;
  for (const int64_t id : config.eos_tokens)
    if (id < tokenizer.vocab_size())
      ends.push_back(tokenizer.decode(std::vector{static_cast<TokenId>(id)}, true));
  std::string text = fmt::format("{} ids", tokenizer.vocab_size());
  if (config.padded_ids > 0)
    text += fmt::format("; {} rows of the model are padding", config.padded_ids);
  return text + (ends.empty() ? "; the model names no token that ends a text"
                              : fmt::format("; a text ends with {}", join_texts(ends, " or ")));
}

std::string chat_of(const chat::PromptFormat& format) {
  if (!format.has_template()) return "no template: prompts are plain text";
  const chat::AnswerForm& form = format.answer_form();
  std::string text = "a template; tools: ";
  text += form.tools == chat::ToolForm::kNone     ? "none"
          : form.tools == chat::ToolForm::kHermes ? "as Hermes and Qwen call them"
                                                  : "as Llama 3 calls them";
  if (form.thinks) text += "; answers begin with thoughts";
  if (format.turns_fault())
    text += fmt::format("; conversations of several turns are not supported: {}",
                        *format.turns_fault());
  else if (format.rewrites())
    text += fmt::format("; it does not only append: {}", *format.rewrites());
  return text;
}

int check_model(const ModelCheckArguments& arguments) {
  const fs::path folder = arguments.folder;
  // Nothing else can be read without the config.
  const auto [config, base] = read_policy_folder(folder);
  Mistakes mistakes;
  mistakes.look([&] {
    check_parameters(base, config);
    if (!config.lora) return;
    const ParameterLayout layout = ParameterLayout::of_adapter(config);
    Parameters adapter(layout);
    load_parameters(folder, config, adapter, kAdapterFile);
  });
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::string chat;
  mistakes.look([&] {
    const fs::path words = tokenizer_folder(folder);
    tokenizer = load_tokenizer_of(words, config);
    chat = chat_of(chat::PromptFormat::of(arguments.chat, words, *tokenizer));
  });
  mistakes.tell();
  model_line("model", shape_of(config));
  model_line("parameters", numbers_of(config));
  if (config.lora)
    model_line("adapter", fmt::format("rank {}, alpha {}, beside {}", config.lora.rank,
                                      config.lora.alpha, base.string()));
  model_line("context", fmt::format("{} positions", config.max_positions));
  model_line("tokenizer", vocabulary_text(*tokenizer, config));
  model_line("chat", chat);
  return kExitDone;
}

}  // namespace

void add_model_check(Command& model) {
  auto arguments = std::make_shared<ModelCheckArguments>();
  Command& command =
      model.command("check", "Read a model folder as a run would, and say what it is");
  command.option("folder", arguments->folder,
                 {.help = "Hugging Face folder of a model, or of an adapter",
                  .value = "FOLDER",
                  .required = true});
  add_chat_flags(command, arguments->chat, arguments->variables);
  command.footer(
      "Reads the config, every weight, the tokenizer and the chat template. Exit status 2 and a "
      "message for each part that is missing, damaged or not supported.\n\n"
      "Example:\n  tailrace model check tests/data/models/stories260K");
  command.action([arguments] {
    set_variables(arguments->chat, arguments->variables);
    return check_model(*arguments);
  });
}

}  // namespace tailrace
