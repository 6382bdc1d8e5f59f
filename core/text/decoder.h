// The "decoder" of a tokenizer.json: token strings back to text.
//
// Thread: any (immutable).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_part.h"

namespace tailrace::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // In place; the text is what the strings are when joined.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
  // The bytes that a token stands for, maybe not whole characters; none: it stands for text.
  virtual std::optional<std::string> bytes_of(const std::string& token) const {
    (void)token;
    return std::nullopt;
  }
};

// ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece. Throws UserError
// for others.
std::unique_ptr<Decoder> parse_decoder(const JsonPart& part);

}  // namespace tailrace::text
