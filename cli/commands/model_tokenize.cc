#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/jsonl_input.h"
#include "cli/inputs/sft_rows.h"
#include "core/base/error.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/chat/prompt_format.h"
#include "core/config/flags.h"
#include "core/text/messages.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

struct TokenizeArguments {
  std::string tokenizer;
  bool special = false, decode = false;
  chat::ChatOptions chat;
};

// Behind a question the beginning of an answer stands; behind an answer nothing more, as in
// supervised training. `nulls`: adds the keys that are left out, as there.
Result<std::vector<TokenId>> ids_of_messages(const chat::PromptFormat& format,
                                             nlohmann::ordered_json messages,
                                             const std::string& tools, int64_t& nulls) {
  if (text::are_messages(messages)) nulls += text::leave_out_nulls(messages);
  if (!text::are_messages(messages) || messages.back().at("role") != "assistant")
    return format.first({.messages = json_text(messages), .tools = tools});
  if (const Result<bool> texts = text::make_texts(messages); !texts) return texts.failure();
  const Result<chat::Lesson> lesson = format.lesson(messages, tools);
  if (!lesson) return lesson.failure();
  return lesson.value().tokens;
}

void tokenize(const TokenizeArguments& arguments) {
  auto tokenizer = text::load_tokenizer(arguments.tokenizer);
  // Only where a row needs it: a template that cannot be read hinders nobody else.
  std::optional<chat::PromptFormat> format;
  JsonlInput input(std::cin, "stdin");
  int64_t nulls = 0;
  while (auto row = input.next()) {
    if (arguments.decode) {
      auto ids = input.ids(*row, "input_ids");
      // decode() would leave such ids out without a word.
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] >= tokenizer->vocab_size())
          throw UserError("{}: input_ids[{}] is {}; the tokenizer has ids below {}", input.where(),
                          i, ids[i], tokenizer->vocab_size());
      // UTF-8 whatever the ids are, so dump() does not throw.
      nlohmann::json out = {{"text", tokenizer->decode(ids, arguments.special)}};
      fmt::print("{}\n", json_text(out));
    } else if (const auto messages = row->find("messages"); messages != row->end()) {
      if (const auto tools = row->find("tools"); tools != row->end())
        nulls += text::leave_out_nulls_of_tools(*tools);
      if (!format)
        format.emplace(chat::PromptFormat::of(arguments.chat, arguments.tokenizer, *tokenizer));
      const auto ids = ids_of_messages(*format, *messages, json_of_field(*row, "tools"), nulls);
      if (!ids) throw UserError("{}: {}", input.where(), ids.failure().message);
      fmt::print("{{\"input_ids\": [{}]}}\n", fmt::join(ids.value(), ", "));
    } else {
      auto ids = tokenizer->encode(input.text(*row, "text"), {.framed = arguments.special});
      fmt::print("{{\"input_ids\": [{}]}}\n", fmt::join(ids, ", "));
    }
  }
  if (nulls > 0) fmt::print(stderr, "note: {}\n", nulls_note(nulls));
}

}  // namespace

void add_model_tokenize(Command& model) {
  auto arguments = std::make_shared<TokenizeArguments>();
  Command& command =
      model.command("tokenize", "Text to token ids and back, JSONL on stdin and stdout");
  command.option("--tokenizer", arguments->tokenizer,
                 {.help = "folder with tokenizer.json", .value = "DIR", .required = true});
  command.option("--special", arguments->special,
                 {.help = "add special tokens; with --decode: keep them"});
  command.option("--decode", arguments->decode,
                 {.help = "rows {\"input_ids\": [...]} to rows {\"text\": \"...\"}"});
  command.option("--chat-date", arguments->chat.date,
                 {.help = "day that the chat template is told as today's, for example 2026-01-31",
                  .value = "DAY"});
  command.footer(
      "A row {\"text\": \"...\"} or {\"messages\": [{\"role\", \"content\"}, ...]}, which the chat "
      "template of the folder writes\n(with the schemas under \"tools\"), gives a row "
      "{\"input_ids\": [...]}.\nBehind the messages stands the beginning of an answer; where the "
      "last one is an answer, the ids are those\nof supervised training, up to its end.\n\n"
      "Example:\n  echo '{\"text\": \"Once upon a time\"}' | tailrace model tokenize --tokenizer "
      "tests/data/models/stories260K");
  command.action([arguments] {
    tokenize(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
