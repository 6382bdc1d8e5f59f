#include "rollout/gateway/answer_stream.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace tailrace::gateway {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The text without what may still change: a character that is not whole, and as much as a stop
// string that has begun may have.
std::string certain_part(std::string text, const std::vector<std::string>& stops) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (text.ends_with(kReplacement)) text.resize(text.size() - kReplacement.size());
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  if (longest == 0) return text;
  // The cut may go through a character. Its bytes, or those of a whole one at the end, come with
  // the next piece.
  text.resize(text.size() - std::min(text.size(), longest - 1));
  while (!text.empty() && continues_character(text.back())) text.pop_back();
  if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  return text;
}

}  // namespace

std::string up_to_stop(std::string text, const std::vector<std::string>& stops) {
  size_t end = text.size();
  for (const std::string& stop : stops)
    if (const size_t at = stop.empty() ? text.npos : text.find(stop); at != text.npos)
      end = std::min(end, at);
  text.resize(end);
  return text;
}

AnswerStream::AnswerStream(const text::Tokenizer& tokenizer, AnswerStreamOptions options)
    : options_(std::move(options)),
      decoder_(tokenizer, options_.keeps_special),
      reader_(options_.form, options_.salt) {}

std::optional<Delta> AnswerStream::more(std::span<const GeneratedToken> so_far) {
  if (so_far.empty()) return std::nullopt;
  // Only what is new is decoded: a stream costs its length, and not the square of it.
  while (decoder_.num_tokens() < so_far.size()) decoder_.add(so_far[decoder_.num_tokens()].id);
  const bool is_first = !has_begun_;
  Delta delta = show(certain_part(up_to_stop(decoder_.text(), options_.stops), options_.stops),
                     so_far, /*is_whole=*/false);
  const bool is_empty = delta.content.empty() && delta.reasoning.empty() && delta.calls.empty() &&
                        delta.text.empty() && delta.tokens.empty();
  if (is_empty && !is_first) return std::nullopt;
  return delta;
}

Delta AnswerStream::rest(const Choice& whole) {
  Delta delta = show(whole.text, whole.tokens, /*is_whole=*/true);
  delta.reason = whole.reason;
  delta.has_calls = !whole.answer.calls.empty();
  return delta;
}

Delta AnswerStream::show(const std::string& text, std::span<const GeneratedToken> tokens,
                         bool is_whole) {
  Delta delta;
  delta.is_first = !std::exchange(has_begun_, true);
  const auto add = [&](chat::AnswerReader::Delta more) {
    delta.content += more.content;
    delta.reasoning += more.reasoning;
    std::ranges::move(more.calls, std::back_inserter(delta.calls));
  };
  // Text that was sent cannot be taken back: where later tokens have changed it, nothing follows
  // until the text begins with it again.
  if (text.size() > shown_.size() && text.starts_with(shown_)) {
    delta.text = text.substr(shown_.size());
    if (options_.is_chat) add(reader_.read(delta.text));
    shown_ = text;
  }
  if (is_whole && options_.is_chat) add(reader_.finish());
  // With a piece that says something: a token may be a part of a character.
  if (is_whole || delta.is_first || !delta.text.empty()) {
    if (options_.wants_tokens) {
      const auto behind = tokens.subspan(std::min(num_tokens_, tokens.size()));
      delta.tokens.assign(behind.begin(), behind.end());
    }
    num_tokens_ = tokens.size();
  }
  delta.first_call = num_calls_;
  num_calls_ += std::ssize(delta.calls);
  text_offset_ = num_characters_;
  num_characters_ +=
      std::ranges::count_if(delta.text, [](char c) { return !continues_character(c); });
  return delta;
}

}  // namespace tailrace::gateway
