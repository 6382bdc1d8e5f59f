// A "pattern" of a tokenizer.json: {"String": ...} or {"Regex": ...}.
//
// Thread: any (immutable).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_part.h"
#include "core/text/regex.h"

namespace tailrace::text {

class Pattern {
 public:
  explicit Pattern(const JsonPart& part);
  // Appends all matches in order, as Regex::find_all.
  void find_all(std::string_view text, std::vector<Span>& out) const;
  std::string replace_all(std::string text, std::string_view content) const;

  // The bytes of the text that is looked for; 0: it is a regular expression.
  int64_t literal_bytes() const {
    return regex_ == nullptr ? static_cast<int64_t>(literal_.size()) : 0;
  }

 private:
  std::string literal_;
  std::unique_ptr<Regex> regex_;  // null: literal_ is meant
};

}  // namespace tailrace::text
