// The "normalizer" of a tokenizer.json: what happens to text before it is cut.
//
// Thread: any (immutable).
#pragma once

#include <memory>
#include <string>

#include "core/text/json_part.h"

namespace tailrace::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string normalize(std::string text) const = 0;  // UTF-8 to UTF-8
  // A text becomes at most so many times shorter, in bytes; 0: there is no bound.
  virtual int64_t max_shrinking() const = 0;
};

// NFC, Prepend, Replace, Sequence. Throws UserError for others.
std::unique_ptr<Normalizer> parse_normalizer(const JsonPart& part);

}  // namespace tailrace::text
