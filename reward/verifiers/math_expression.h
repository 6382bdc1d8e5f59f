// The value of an expression, read by recursive descent from the tokens of an answer.
//
//   sum    = [sign] ["-"] product { sign ["-"] product }   sign: + - \pm \mp
//   product = power { ("*" | "/" | nothing) power }         2x, \frac{1}{2}\pi
//   power  = primary ["!" | "%" | "°"] ["^" power]
//   primary = number | letter | group | \frac | \binom | \sqrt | function | |sum| | floor | ceiling
//
// A whole number before a fraction of whole numbers is a mixed one: 1\frac12 is 3/2. \log without
// a base is the natural one. f(x) and the like are no products, and so no expressions.
//
// Thread: any.
#pragma once

#include <optional>
#include <span>

#include "reward/verifiers/latex_tokens.h"
#include "reward/verifiers/math_number.h"

namespace tailrace {

// None: no expression, or one that is not computed (a division by zero, a huge power). `minus`:
// what \pm stands for; \mp is the other.
std::optional<MathNumber> evaluate_math(std::span<const LatexToken> tokens, bool minus = false);

}  // namespace tailrace
