// Integer arithmetic expressions, read by recursive descent and evaluated exactly.
//
//   sum     = product { ("+" | "-") product }
//   product = factor { ("*" | "/") factor }
//   factor  = digits | "(" sum ")"
//
// Blanks may stand between symbols. There are no signs, no decimals, no powers: what a model writes
// is data, and nothing of it is executed.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tailrace::sandbox {

struct Rational {
  int64_t numerator = 0;
  int64_t denominator = 1;  // positive; the fraction is reduced
  friend bool operator==(const Rational&, const Rational&) = default;
};

struct Evaluation {
  std::optional<Rational> value;  // none: a division by zero, or beyond 64 bits
  std::vector<int64_t> numbers;   // as they stand in the text
};

// None: not an expression (also: over 4,096 bytes, nested over 64 deep, a number of over 18
// digits).
std::optional<Evaluation> evaluate(std::string_view text);

}  // namespace tailrace::sandbox
