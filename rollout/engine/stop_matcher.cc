#include "rollout/engine/stop_matcher.h"

#include <algorithm>
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
  may_end_.assign(static_cast<size_t>(vocab), false);
  // A token decoded alone may lose a blank or show as U+FFFD; in doubt it may end anything.
  bool blank = last_bytes.find(' ') != std::string::npos;
  for (int64_t id = 0; id < std::min(vocab, tokenizer.vocab_size()); ++id) {
    auto token = static_cast<TokenId>(id);
    std::string text = tokenizer.decode({&token, 1});
    may_end_[static_cast<size_t>(id)] =
        !stop_strings_.empty() && (blank || text.find(kReplacement) != std::string::npos ||
                                   text.find_first_of(last_bytes) != std::string::npos);
  }
}

bool StopMatcher::completes(std::span<const TokenId> sampled) const {
  if (sampled.empty() || !may_end_[static_cast<size_t>(sampled.back())]) return false;
  // The text of the last tokens is the end of the whole text, but for its first character (a blank
  // that decoding strips, or half a character). So take enough tokens for the longest stop string
  // and a character more.
  // A token is mostly a byte or more, but some decode to nothing; where they did, twice as many are
  // decoded. Not the whole answer each time, which would cost the square of its length.
  for (size_t count = longest_ + 8;; count *= 2) {
    count = std::min(count, sampled.size());
    std::string text = tokenizer_.decode(sampled.last(count));
    // 4: the longest character in UTF-8, which may be missing in front.
    if (count < sampled.size() && text.size() < longest_ + 4) continue;
    // Anywhere in that text and not only at its end: a token may go on behind the stop string.
    return std::ranges::any_of(stop_strings_, [&](const std::string& stop) {
      return text.find(stop) != std::string::npos;
    });
  }
}

}  // namespace tailrace
