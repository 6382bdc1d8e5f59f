// How an environment with tools talks: in words of its own, for policies with its vocabulary, or in
// messages with calls in the form of Hermes or Llama 3, for models with a chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/chat/tool_calls.h"

namespace tailrace::sandbox {

inline constexpr const char* kToolFormHelp =
    "words: plain text, for model.create; hermes, llama3: messages and tools, for models whose "
    "chat "
    "template has calls of this form";

class ToolTalk {
 public:
  // `form` is the setting: words, hermes or llama3.
  explicit ToolTalk(std::string_view form);

  bool is_chat() const { return is_chat_; }
  // Reads an action. Its calls have ids that (seed, turn) decide.
  chat::ParsedAnswer read(std::string_view action, uint64_t seed, int64_t turn) const;

  // A call as a policy writes it; arguments: a JSON object. With words it is Hermes in one line.
  std::string call(std::string_view name, std::string_view arguments) const;
  // Several of one turn.
  std::string join(const std::vector<std::string>& calls) const;

 private:
  bool is_chat_;
  chat::AnswerForm form_;
};

// The answers to the calls of one turn, as messages.
class ToolReplies {
 public:
  void answer(const chat::ToolCall& call, std::string content);
  // To a turn without an action, or with a call that could not be read.
  void ask_again(const chat::ParsedAnswer& answer);
  std::string json() const;

 private:
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
};

// The last whole number of a text, without a sign.
std::optional<int64_t> last_number(std::string_view text);

}  // namespace tailrace::sandbox
