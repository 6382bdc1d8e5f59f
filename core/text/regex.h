// Regular expressions as tokenizer files use them (Oniguruma's Unicode syntax, which oniguruma.h
// translates), on PCRE2 with JIT.
//
// Thread: any (immutable).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace::text {

struct Span {
  size_t begin = 0, end = 0;  // bytes; end is exclusive
  friend bool operator==(const Span&, const Span&) = default;
};

class Regex {
 public:
  // Throws UserError, beginning with `where`, for a pattern that does not compile.
  Regex(const std::string& pattern, std::string where);
  ~Regex();

  // Appends all matches in order, also empty ones ("(?=[A-Z])"). `text` must be UTF-8; offsets are
  // from its beginning. Throws UserError if the pattern backtracks too much on this text.
  void find_all(std::string_view text, std::vector<Span>& out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::text
