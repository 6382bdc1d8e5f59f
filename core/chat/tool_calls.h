// The answer of a policy, read as its chat template has it: thinking, calls of tools, and the text
// that is left.
//
// Hermes (Qwen):  <tool_call> {"name": "price", "arguments": {"item": "milk"}} </tool_call>
// Llama 3:        {"name": "price", "parameters": {"item": "milk"}}, at the beginning of an
//                 answer, behind <|python_tag|> or not; several are separated by ';' or white space
// Thinking:       <think> ... </think> at the beginning; without its end all of it is thinking
//
// A call has a name, which is a text that is not empty, and arguments (or "parameters"), which are
// an object or a text that holds one. Any other call is malformed: it is counted, and it stays in
// the content as it was written. White space that touches a call is no content, and neither are
// newlines at the edges of the thinking; all else is content as it was written, with a newline
// where a call stood between two texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace::chat {

// Longer calls are malformed.
inline constexpr size_t kMostCallBytes = size_t{1} << 20;

struct ToolCall {
  std::string id = {};  // "call_" and a number that (salt, index of the call) decide
  std::string name = {};
  std::string arguments = {};  // a JSON object, as the policy wrote it

  bool operator==(const ToolCall&) const = default;
};

struct ParsedAnswer {
  std::string content = {};
  std::string reasoning = {};
  std::vector<ToolCall> calls = {};
  int64_t num_malformed = 0;

  bool operator==(const ParsedAnswer&) const = default;
};

enum class ToolForm : uint8_t { kNone, kHermes, kLlama3 };

// How a template has its policy answer (PromptFormat::answer_form()).
struct AnswerForm {
  ToolForm tools = ToolForm::kNone;
  bool thinks = false;
  bool begins_thinking = false;  // the template itself opens the thinking of each answer

  bool operator==(const AnswerForm&) const = default;
};

// Parses the text of an answer, without the end of its turn. Never throws for what a policy wrote.
ParsedAnswer parse_answer(std::string_view text, const AnswerForm& form, uint64_t salt);

// The same while the answer comes, in pieces that are cut anywhere. What deltas have shown never
// changes: together with the last of them they are the parsed answer.
//
// Thread: one at a time.
class AnswerReader {
 public:
  struct Delta {
    std::string content = {}, reasoning = {};  // whole code points
    std::vector<ToolCall> calls = {};          // whole calls
  };

  AnswerReader(AnswerForm form, uint64_t salt);

  Delta read(std::string_view more);
  // There is no more: the last delta, and the whole answer. Nothing follows.
  Delta finish();
  const ParsedAnswer& answer() const { return answer_; }

 private:
  enum class State : uint8_t { kBeginning, kThinking, kText, kHermesCall, kLlamaCalls, kRest };

  // Reads on as far as `held_` says for certain what it is. False: more is needed.
  bool advance();
  bool begin();
  bool think();
  bool find_call();
  bool end_hermes_call();
  bool read_llama_call();
  size_t end_of_object();

  void call_or_text(std::string_view object, std::string_view whole, bool is_call);
  void say(std::string_view text);
  void think_aloud(std::string_view text);
  Delta take_delta(bool is_last);

  const AnswerForm form_;
  const uint64_t salt_;
  State state_ = State::kBeginning;
  std::string held_;  // read, and not yet understood
  // Separators that are content only if text stands on both of their sides.
  std::string gap_;
  bool behind_block_ = false;  // a call or the thinking stands in front of the gap
  bool behind_call_ = false;
  bool tagged_ = false;  // <|python_tag|> stands in the gap
  // How far the object or the call that begins `held_` has been looked at.
  size_t looked_at_ = 0;
  int64_t depth_ = 0;
  bool in_text_ = false, escaped_ = false;
  ParsedAnswer answer_;
  size_t shown_content_ = 0, shown_reasoning_ = 0, shown_calls_ = 0;
};

}  // namespace tailrace::chat
