// The "pre_tokenizer" of a tokenizer.json: cuts normalised text into the pieces that the model
// encodes one by one.
//
// Thread: any (immutable).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_part.h"
#include "core/text/regex.h"

namespace tailrace::text {

// Spans are in order, do not overlap and are not empty; text between them is left out.
struct Pieces {
  std::string text;
  std::vector<Span> spans;
  bool at_start = true;  // the first of them begins what is encoded: no added token is before it

  explicit Pieces(std::string t) : text(std::move(t)) {
    if (!text.empty()) spans.push_back({0, text.size()});
  }
  std::string_view piece(const Span& span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void cut(Pieces& pieces) const = 0;
  // No text is left out of the pieces.
  virtual bool keeps_text() const { return true; }
};

// ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit. Throws
// UserError for others.
std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const JsonPart& part);

}  // namespace tailrace::text
