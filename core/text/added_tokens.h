// Added tokens of a tokenizer.json: cut out of text before anything else looks at it.
//
// Thread: any (immutable).
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/generate.h"
#include "core/text/json_part.h"

namespace tailrace::text {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;                 // left out of decoded text
  bool normalized = false;              // matched against normalised text
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // takes the blanks around it with it
};

// The "added_tokens" list. Throws UserError.
std::vector<AddedToken> parse_added_tokens(const JsonPart& part);

// Either plain text (id == -1) or a token.
struct Section {
  std::string_view text;
  TokenId id = -1;
};

// At least the bytes of white space in `text` that these tokens take with them, wherever they are
// found in it. With a token that strips `text` must be UTF-8.
int64_t num_stripped(std::span<const AddedToken> tokens, std::string_view text);

class AddedTokenMatcher {
 public:
  // Tokens with empty content are never found.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  // Left to right, the longest at each place, as Hugging Face does. Appends; sections borrow
  // `text`. No special token lies over one of `literal`, ascending offsets of `text`; one of a
  // single character does not begin at one.
  void cut(std::string_view text, std::span<const size_t> literal, std::vector<Section>& out) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at,
                               std::span<const size_t> literal) const;
  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
  bool empty_ = true;
};

}  // namespace tailrace::text
