// Cuts a Jinja template into tokens as Jinja2 does it with trim_blocks and lstrip_blocks: the
// newline behind a block tag goes, and so do blanks between the start of a line and a block tag.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace::chat::jinja {

struct Token {
  enum class Kind {
    kText,  // outside of tags
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // unescaped
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };

  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;
  int64_t integer = 0;
  double real = 0;
};

// Ends in a kEnd. Comments are left out, raw blocks are text. `source` must be UTF-8. Throws Error,
// with its line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tailrace::chat::jinja
