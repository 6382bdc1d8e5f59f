#include "core/chat/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/random.h"

namespace tailrace::chat {
namespace {

constexpr std::string_view kOpenThinking = "<think>", kCloseThinking = "</think>",
                           kOpenCall = "<tool_call>", kCloseCall = "</tool_call>",
                           kPythonTag = "<|python_tag|>", kWhite = " \t\r\n";

bool is_white(char c) { return kWhite.find(c) != kWhite.npos; }

// The size of the longest end of `text` that may become `tag`.
size_t size_of_begun(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(tag.size() - 1, text.size()); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

// More bytes may make it begin with `tag`.
bool may_become(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

// The bytes at the end of `text` that begin a code point of UTF-8 and do not end it.
size_t size_of_open_character(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xC0) continue;
    const size_t size = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return size > back ? back : 0;
  }
  return 0;
}

// The value of `key` in valid JSON of an object, as it is written. Empty: the key is written with
// escapes.
std::string_view written_value(std::string_view json, std::string_view key) {
  int depth = 0;
  size_t text_begin = 0;
  bool in_text = false, found = false;
  size_t value = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_text = false;
      if (depth == 1 && !found && json.substr(text_begin, i - text_begin) == key) {
        const size_t next = json.find_first_not_of(kWhite, i + 1);
        if (next == json.npos || json[next] != ':') continue;  // a value of these letters
        found = true;
        value = json.find_first_not_of(kWhite, next + 1);
        i = next;
      }
    } else if (c == '"') {
      in_text = true;
      text_begin = i + 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']' || c == ',') {
      if (found && depth == 1) {
        const std::string_view written = json.substr(value, i - value);
        return written.substr(0, written.find_last_not_of(kWhite) + 1);
      }
      if (c != ',') --depth;
    }
  }
  return {};
}

// Without its id.
std::optional<ToolCall> call_of(std::string_view json) {
  if (json.size() > kMostCallBytes) return std::nullopt;
  const auto parsed = parse_json_row(json);
  if (!parsed) return std::nullopt;
  const auto& object = parsed.value();
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    return std::nullopt;
  const char* key = object.contains("arguments") ? "arguments" : "parameters";
  const auto arguments = object.find(key);
  if (arguments == object.end()) return std::nullopt;
  ToolCall call{.name = name->get<std::string>()};
  if (arguments->is_string()) {
    call.arguments = arguments->get<std::string>();
    if (!parse_json_row(call.arguments)) return std::nullopt;
  } else if (arguments->is_object()) {
    // The policy's own spelling: a dump of the parsed value would write numbers and blanks
    // otherwise, and an answer that is sent back would no longer be the tokens that were sampled.
    call.arguments = written_value(json, key);
    if (call.arguments.empty()) call.arguments = json_text(*arguments);
  } else {
    return std::nullopt;
  }
  return call;
}

}  // namespace

AnswerReader::AnswerReader(AnswerForm form, uint64_t salt) : form_(form), salt_(salt) {}

AnswerReader::Delta AnswerReader::read(std::string_view more) {
  held_ += more;
  while (advance()) {
  }
  return take_delta(/*is_last=*/false);
}

// Text that is still held was begun and not ended.
AnswerReader::Delta AnswerReader::finish() {
  while (advance()) {
  }
  const std::string rest = std::exchange(held_, {});
  // Under a template that opens the thinking itself, an answer of blanks, or one that ends inside
  // the tag, is thinking.
  if (state_ == State::kBeginning && form_.begins_thinking && !behind_block_)
    state_ = State::kThinking;
  switch (state_) {
    case State::kThinking:
      think_aloud(rest);
      gap_.clear();
      break;
    case State::kHermesCall:
      ++answer_.num_malformed;
      say(std::string(kOpenCall) + rest);
      break;
    case State::kLlamaCalls:
      // An object that was cut off is malformed where it looks like a call; other JSON is an
      // answer.
      if (tagged_ || rest.find("\"name\"") != rest.npos) ++answer_.num_malformed;
      say(tagged_ ? std::exchange(gap_, {}) + rest : rest);
      break;
    default:
      say(rest);
  }
  if (!behind_block_) answer_.content += gap_;
  gap_.clear();
  return take_delta(/*is_last=*/true);
}

bool AnswerReader::advance() {
  if (held_.empty()) return false;
  switch (state_) {
    case State::kBeginning:
      return begin();
    case State::kThinking:
      return think();
    case State::kText:
      return find_call();
    case State::kHermesCall:
      return end_hermes_call();
    case State::kLlamaCalls:
      return read_llama_call();
    case State::kRest:
      say(held_);
      held_.clear();
      return false;
  }
  return false;
}

// White space, and then perhaps the beginning of the thinking; behind it, or without it, what the
// form of the calls begins with.
bool AnswerReader::begin() {
  if ((form_.thinks || form_.begins_thinking) && !behind_block_) {
    const size_t at = held_.find_first_not_of(kWhite);
    if (at == held_.npos) return false;
    const std::string_view text = std::string_view(held_).substr(at);
    // Nothing is decided while the tag may still be incomplete: a piece may be cut at any byte, and
    // a delta that was shown cannot be taken back.
    if (may_become(text, kOpenThinking)) return false;
    const bool opens = text.starts_with(kOpenThinking);
    if (opens) held_.erase(0, at + kOpenThinking.size());
    if (opens || form_.begins_thinking) {
      state_ = State::kThinking;
      return true;
    }
  }
  state_ = form_.tools == ToolForm::kHermes   ? State::kText
           : form_.tools == ToolForm::kLlama3 ? State::kLlamaCalls
                                              : State::kRest;
  return true;
}

bool AnswerReader::think() {
  const size_t end = held_.find(kCloseThinking);
  if (end == held_.npos) {
    // Everything but the longest beginning of the tag at the end is certain to be thinking.
    const size_t sure = held_.size() - size_of_begun(held_, kCloseThinking);
    think_aloud(std::string_view(held_).substr(0, sure));
    held_.erase(0, sure);
    return false;
  }
  think_aloud(std::string_view(held_).substr(0, end));
  held_.erase(0, end + kCloseThinking.size());
  gap_.clear();
  behind_block_ = true;
  state_ = State::kBeginning;
  return true;
}

bool AnswerReader::find_call() {
  const size_t at = held_.find(kOpenCall);
  const size_t sure = at != held_.npos ? at : held_.size() - size_of_begun(held_, kOpenCall);
  say(std::string_view(held_).substr(0, sure));
  held_.erase(0, sure);
  if (at == held_.npos) return false;
  held_.erase(0, kOpenCall.size());
  looked_at_ = 0;
  state_ = State::kHermesCall;
  return true;
}

bool AnswerReader::end_hermes_call() {
  const size_t end = held_.find(kCloseCall, looked_at_);
  if (end == held_.npos && held_.size() < kMostCallBytes + kCloseCall.size()) {
    // The next search goes on where the tag may have begun, so that a long call is searched once
    // and not again with each token.
    looked_at_ = held_.size() - std::min(held_.size(), kCloseCall.size() - 1);
    return false;
  }
  state_ = State::kText;
  if (end == held_.npos || end > kMostCallBytes) {
    ++answer_.num_malformed;
    // Only the tag becomes text. The rest is looked at again: another call may begin inside of it.
    say(kOpenCall);
    return true;
  }
  const std::string body = held_.substr(0, end);
  held_.erase(0, end + kCloseCall.size());
  call_or_text(body, fmt::format("{}{}{}", kOpenCall, body, kCloseCall), /*is_call=*/true);
  return true;
}

// Behind the brace that closes the first of `held_`, which is an object's; npos: not there yet.
size_t AnswerReader::end_of_object() {
  for (; looked_at_ < held_.size(); ++looked_at_) {
    const char c = held_[looked_at_];
    if (in_text_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_text_ = false;
      }
    } else if (c == '"') {
      in_text_ = true;
    } else if (c == '{') {
      ++depth_;
    } else if (c == '}' && --depth_ == 0) {
      return looked_at_ + 1;
    }
  }
  return std::string::npos;
}

bool AnswerReader::read_llama_call() {
  size_t at = 0;
  if (looked_at_ == 0) {
    while (at < held_.size() && (is_white(held_[at]) || (held_[at] == ';' && behind_call_))) ++at;
    gap_ += held_.substr(0, at);
    held_.erase(0, at);
    if (held_.empty()) return false;
    // Llama 3 writes its tag once, in front of all calls. Later it is text.
    const bool is_first = !behind_call_ && answer_.content.empty() && !tagged_;
    if (is_first && may_become(held_, kPythonTag)) return false;
    if (is_first && held_.starts_with(kPythonTag)) {
      gap_ += kPythonTag;
      tagged_ = true;
      held_.erase(0, kPythonTag.size());
      return true;
    }
  }
  const bool is_object = held_[0] == '{';
  const size_t end = is_object ? end_of_object() : std::string::npos;
  if (is_object && end == std::string::npos && held_.size() <= kMostCallBytes) return false;
  looked_at_ = 0;
  depth_ = 0;
  in_text_ = escaped_ = false;
  if (end == std::string::npos || end > kMostCallBytes) {
    // Text, up to the end of the answer.
    if (tagged_ || is_object) ++answer_.num_malformed;
    state_ = State::kRest;
    return true;
  }
  const std::string object = held_.substr(0, end);
  held_.erase(0, end);
  // Some answers are JSON and no call.
  call_or_text(object, object, tagged_ || object.find("\"name\"") != object.npos);
  return true;
}

void AnswerReader::call_or_text(std::string_view object, std::string_view whole, bool is_call) {
  if (auto call = call_of(object)) {
    // A function of salt and index and no random number, so that a repeated run gives the same ids.
    call->id = fmt::format("call_{:016x}", mix({salt_, answer_.calls.size()}));
    answer_.calls.push_back(std::move(*call));
    gap_.clear();
    tagged_ = false;
    behind_block_ = behind_call_ = true;
    return;
  }
  if (is_call) ++answer_.num_malformed;
  say(whole);
}

// Its white space at the end waits for what follows.
void AnswerReader::say(std::string_view text) {
  tagged_ = false;
  const size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
  gap_ += text.substr(0, begin);
  if (begin == text.size()) return;
  if (behind_block_) {
    // Behind the thinking newlines are cut off, behind a call all white space.
    if (!behind_call_) {
      answer_.content += gap_.substr(std::min(gap_.find_first_not_of('\n'), gap_.size()));
    } else if (!answer_.content.empty()) {
      answer_.content += '\n';
    }
  } else {
    answer_.content += gap_;
  }
  const size_t end = text.find_last_not_of(kWhite) + 1;
  answer_.content += text.substr(begin, end - begin);
  gap_ = text.substr(end);
  behind_block_ = behind_call_ = false;
}

void AnswerReader::think_aloud(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of('\n'), text.size());
  gap_ += text.substr(0, begin);
  if (begin == text.size()) return;
  if (!answer_.reasoning.empty()) answer_.reasoning += gap_;
  const size_t end = text.find_last_not_of('\n') + 1;
  answer_.reasoning += text.substr(begin, end - begin);
  gap_ = text.substr(end);
}

AnswerReader::Delta AnswerReader::take_delta(bool is_last) {
  const auto news = [&](const std::string& all, size_t& shown) {
    std::string_view text = std::string_view(all).substr(shown);
    // A client gets whole characters: a token may end in the middle of one.
    if (!is_last) text.remove_suffix(size_of_open_character(text));
    shown += text.size();
    return std::string(text);
  };
  Delta delta{.content = news(answer_.content, shown_content_),
              .reasoning = news(answer_.reasoning, shown_reasoning_)};
  delta.calls.assign(answer_.calls.begin() + static_cast<std::ptrdiff_t>(shown_calls_),
                     answer_.calls.end());
  shown_calls_ = answer_.calls.size();
  return delta;
}

ParsedAnswer parse_answer(std::string_view text, const AnswerForm& form, uint64_t salt) {
  AnswerReader reader(form, salt);
  reader.read(text);
  reader.finish();
  return reader.answer();
}

}  // namespace tailrace::chat
