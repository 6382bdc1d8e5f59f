#include "core/text/added_tokens.h"

#include <algorithm>

#include "core/text/regex.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

// Word characters as in the `\w` of Rust; close enough to ask whether a word goes on.
bool touches_word(std::string_view character) {
  static const Regex word(R"([\p{L}\p{M}\p{N}\p{Pc}])", "single_word");
  std::vector<Span> matches;
  word.find_all(character, matches);
  return !matches.empty();
}

// `limit` is where the token before it ends: white space is given to one token only.
size_t skip_space_back(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    size_t before = last_code_point(text.substr(0, at));
    size_t next = before;
    if (before < limit || !is_white_space(next_code_point(text, next))) break;
    at = before;
  }
  return at;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t before = last_code_point(text.substr(0, begin));
    if (touches_word(text.substr(before, begin - before))) return false;
  }
  if (end < text.size()) {
    size_t next = end;
    next_code_point(text, next);
    if (touches_word(text.substr(end, next - end))) return false;
  }
  return true;
}

// An offset at either end of the token does not hinder it. One character has no inside: an offset
// in front of it does.
bool lies_over(std::span<const size_t> literal, std::string_view text, size_t begin, size_t end) {
  size_t second = begin;
  next_code_point(text, second);
  const auto next = second < end ? std::ranges::upper_bound(literal, begin)
                                 : std::ranges::lower_bound(literal, begin);
  return next != literal.end() && *next < end;
}

}  // namespace

std::vector<AddedToken> parse_added_tokens(const JsonPart& part) {
  std::vector<AddedToken> tokens;
  for (const JsonPart& item : part.items()) {
    int64_t id = item.at("id").integer();
    // The bound of parse_vocabulary(): these ids index the same tables.
    if (id < 0 || id >= 1 << 24) item.at("id").refuse("an integer from 0 to 16777215");
    bool special = item.flag("special", false);
    // Hugging Face's default too: what is special is looked for in the text as it was written.
    tokens.push_back({.id = static_cast<TokenId>(id),
                      .content = item.text("content"),
                      .special = special,
                      .normalized = item.flag("normalized", !special),
                      .single_word = item.flag("single_word", false),
                      .lstrip = item.flag("lstrip", false),
                      .rstrip = item.flag("rstrip", false)});
  }
  return tokens;
}

int64_t num_stripped(std::span<const AddedToken> tokens, std::string_view text) {
  int64_t stripped = 0;
  for (const AddedToken& token : tokens) {
    if ((!token.lstrip && !token.rstrip) || token.content.empty()) continue;
    size_t done = 0;  // up to here all is counted
    for (size_t at = 0; (at = text.find(token.content, at)) != text.npos;) {
      const size_t end = at + token.content.size();
      if (token.lstrip && at > done) stripped += at - skip_space_back(text, at, done);
      size_t next = end;
      if (token.rstrip) stripped += (next = skip_space(text, end)) - end;
      // One byte on, as places where it is found may overlap; but not inside counted blanks.
      done = std::max(done, next);
      at = next > end ? next : at + 1;
    }
  }
  return std::min(stripped, std::ssize(text));
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) {
  // longest_at() takes the first that fits. Stable: of two with one content the file's first wins.
  std::stable_sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (AddedToken& token : tokens) {
    // It would be found everywhere, and the search would never move on.
    if (token.content.empty()) continue;
    empty_ = false;
    by_first_byte_[static_cast<uint8_t>(token.content[0])].push_back(std::move(token));
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t at,
                                                std::span<const size_t> literal) const {
  for (const AddedToken& token : by_first_byte_[static_cast<uint8_t>(text[at])]) {
    if (!text.substr(at).starts_with(token.content)) continue;
    if (lies_over(literal, text, at, at + token.content.size())) continue;
    return &token;
  }
  return nullptr;
}

void AddedTokenMatcher::cut(std::string_view text, std::span<const size_t> literal,
                            std::vector<Section>& out) const {
  size_t done = 0;
  // Byte by byte is safe: a token begins with the first byte of a character, and no such byte
  // stands inside another character.
  for (size_t at = 0; at < text.size() && !empty_;) {
    const AddedToken* token = longest_at(text, at, literal);
    if (token == nullptr) {
      ++at;
      continue;
    }
    // Even where single_word refuses it, the search goes on behind it: Hugging Face's matcher finds
    // matches first and filters them afterwards.
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) begin = skip_space_back(text, begin, done);
    if (token->rstrip) at = end = skip_space(text, end);
    if (begin > done) out.push_back({.text = text.substr(done, begin - done)});
    out.push_back({.text = text.substr(begin, end - begin), .id = token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({.text = text.substr(done)});
}

}  // namespace tailrace::text
