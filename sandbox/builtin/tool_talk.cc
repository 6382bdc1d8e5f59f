#include "sandbox/builtin/tool_talk.h"

#include <charconv>
#include <utility>

#include "core/base/json_text.h"
#include "core/base/random.h"

namespace tailrace::sandbox {

ToolTalk::ToolTalk(std::string_view form) : is_chat_(form != "words") {
  form_.tools = form == "llama3" ? chat::ToolForm::kLlama3 : chat::ToolForm::kHermes;
  form_.thinks = is_chat_;
}

chat::ParsedAnswer ToolTalk::read(std::string_view action, uint64_t seed, int64_t turn) const {
  // Ids of calls follow from task and turn, so that an episode that is played again says the same.
  return chat::parse_answer(action, form_, mix({seed, static_cast<uint64_t>(turn)}));
}

std::string ToolTalk::call(std::string_view name, std::string_view arguments) const {
  const bool llama = form_.tools == chat::ToolForm::kLlama3;
  std::string text = R"({"name": ")" + std::string(name) +
                     (llama ? R"(", "parameters": )" : R"(", "arguments": )") +
                     std::string(arguments) + "}";
  if (llama) return text;
  const char* blank = is_chat_ ? "\n" : " ";
  return "<tool_call>" + (blank + text) + blank + "</tool_call>";
}

std::string ToolTalk::join(const std::vector<std::string>& calls) const {
  const char* between = form_.tools == chat::ToolForm::kLlama3 ? "; " : is_chat_ ? "\n" : " ";
  std::string text;
  for (const std::string& call : calls) text += (text.empty() ? "" : between) + call;
  return text;
}

void ToolReplies::answer(const chat::ToolCall& call, std::string content) {
  messages_.push_back(
      {{"role", "tool"}, {"tool_call_id", call.id}, {"content", std::move(content)}});
}

void ToolReplies::ask_again(const chat::ParsedAnswer& answer) {
  messages_.push_back(
      {{"role", "user"},
       {"content", answer.num_malformed > 0 ? "What? A call could not be read."
                                            : "What? There is no call and no whole number."}});
}

std::string ToolReplies::json() const { return json_text(messages_); }

std::optional<int64_t> last_number(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t last = text.find_last_of(kDigits);
  if (last == text.npos) return std::nullopt;
  const size_t before = text.find_last_not_of(kDigits, last);
  const size_t begin = before == text.npos ? 0 : before + 1;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + last + 1, value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace tailrace::sandbox
