#include "rollout/engine/stop_matcher.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

namespace tailrace {
namespace {

// U+FFFD: bytes of an unfinished character.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

StopMatcher::StopMatcher(const text::Tokenizer& tokenizer, std::vector<std::string> stop_strings,
                         int64_t vocab)
    : tokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {
  // An empty string would be found in every text.
  std::erase_if(stop_strings_, [](const std::string& s) { return s.empty(); });
  std::string last_bytes;
  for (const std::string& stop : stop_strings_) {
    longest_ = std::max(longest_, stop.size());
    last_bytes += stop.back();
  }
  tokens_.assign(static_cast<size_t>(vocab), {});
  const auto num_tokens = static_cast<TokenId>(std::min(vocab, tokenizer.vocab_size()));
  const auto decode = [&](std::initializer_list<TokenId> ids, bool keep_special = false) {
    return tokenizer.decode(std::span(ids.begin(), ids.size()), keep_special);
  };
  // Half a character. A decoder that turns whole runs of bytes into characters (byte fallback)
  // shows it: a newline that is a byte of such a run is another text behind it.
  std::optional<TokenId> half;
  for (TokenId id = 0; id < num_tokens && !half; ++id)
    if (decode({id}) == kReplacement) half = id;
  // A token decoded alone may lose a blank or show as U+FFFD; in doubt it may end anything.
  const bool blank = last_bytes.find(' ') != std::string::npos;
  for (TokenId id = 0; id < num_tokens; ++id) {
    const std::string text = decode({id}), kept = decode({id}, /*keep_special=*/true);
    const bool broken = text.find(kReplacement) != std::string::npos;
    Token& token = tokens_[static_cast<size_t>(id)];
    token.special = kept != text;
    token.may_end = !stop_strings_.empty() &&
                    (blank || broken || kept.find_first_of(last_bytes) != std::string::npos);
    token.stands_alone = !text.empty() && !broken &&
                         (!half || decode({*half, id}) == std::string(kReplacement) + text);
  }
}

bool StopMatcher::found_in(const std::string& text) const {
  // Anywhere in that text and not only at its end: a token may go on behind the stop string.
  return std::ranges::any_of(
      stop_strings_, [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
}

bool StopMatcher::completes(std::span<const TokenId> sampled) const {
  // A model's vocabulary may be padded: what is behind it has no text.
  const auto token_of = [&](TokenId id) {
    return static_cast<size_t>(id) < tokens_.size() ? tokens_[static_cast<size_t>(id)] : Token{};
  };
  if (sampled.empty() || !token_of(sampled.back()).may_end) return false;
  // The text of the last tokens is the end of the whole text, but for its first character (a blank
  // that decoding strips): so enough tokens for the longest stop string before the last token, and
  // a character more, beginning with one whose text is its own. A token is mostly a byte or more,
  // but some decode to nothing; where they did, twice as many are decoded. Not the whole answer
  // each time, which would cost the square of its length.
  const size_t enough = longest_ + 4 + tokenizer_.decode(sampled.last(1)).size();
  for (size_t count = longest_ + 8;; count *= 2) {
    count = std::min(count, sampled.size());
    while (count < sampled.size() && !token_of(sampled[sampled.size() - count]).stands_alone)
      ++count;
    const auto window = sampled.last(count);
    const std::string text = tokenizer_.decode(window);
    if (count < sampled.size() && text.size() < enough) continue;
    if (found_in(text)) return true;
    return std::ranges::any_of(window, [&](TokenId id) { return token_of(id).special; }) &&
           found_in(tokenizer_.decode(window, /*keep_special=*/true));
  }
}

}  // namespace tailrace
