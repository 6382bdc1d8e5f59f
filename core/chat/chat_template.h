// Conversations to text, as a model's own chat template writes them: what transformers'
// apply_chat_template(tokenize=False) gives, byte for byte, or a refusal.
//
// Templates are programs in Jinja; core/chat/jinja_* is the part of that language that chat
// templates use, and what is missing is refused by name when a template is parsed. Templates come
// from outside: the depth of their nesting, the recursion of macros, the number of steps and the
// size of the text of one render are bounded (jinja_budget.h).
//
// Thread: any (immutable).
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tailrace::chat {

struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // of {"role", "content", ...}
  nlohmann::ordered_json tools;      // a list of JSON schemas; null: none
  nlohmann::ordered_json documents;  // the same
  bool add_generation_prompt = false;
  // An object: whatever else the template knows (enable_thinking, date_string, bos_token). What is
  // not here is undefined in the template, but for the special tokens of a folder.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  // The time that the template's strftime_now() tells. A template that asks is refused without it:
  // a text that depends on the day that it was rendered cannot be made again.
  std::optional<std::tm> now;
};

class ChatTemplate {
 public:
  // `where` names the source in messages: "model/chat_template.jinja". Throws UserError with the
  // line, for bad syntax and for statements, filters and tests that are not supported.
  static ChatTemplate parse(std::string_view source, std::string where);

  // The template of a model folder: chat_template.jinja, else `chat_template` of
  // tokenizer_config.json, which is a text or a list of {"name", "template"}; chat_template.jinja
  // is the one named "default". nullopt: the folder has no chat template. Special tokens of
  // tokenizer_config.json (bos_token, eos_token, ...) are variables, as in transformers. Throws
  // UserError: as parse(), an unreadable file, no template of this name.
  static std::optional<ChatTemplate> of_folder(const std::filesystem::path& directory,
                                               std::string_view name = "default");

  // The template of `file`, with the special tokens of a model folder. Throws UserError: as
  // parse(), an unreadable file.
  static ChatTemplate of_file(const std::filesystem::path& file,
                              const std::filesystem::path& directory);

  // Throws UserError with file, line and the reason: the template's own raise_exception(), a use of
  // something undefined, a wrong type, too much work.
  std::string render(const ChatInput& input) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

// May a conversation that grows keep its text, and so its tokens? `before` is the conversation that
// was rendered for sampling, `sampled` what the model wrote, `after` the conversation with the
// assistant's message as it was parsed from that, and what came next. nullopt: the text of `after`
// begins with all of it; else the first byte where it does not. Throws UserError as render().
std::optional<size_t> first_difference(const ChatTemplate& chat_template, const ChatInput& before,
                                       std::string_view sampled, const ChatInput& after);

}  // namespace tailrace::chat
