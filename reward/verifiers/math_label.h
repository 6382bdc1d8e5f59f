// The text in front of "=" in an answer: a label, behind which the value stands, or a side of an
// equation.
//
// Thread: any.
#pragma once

#include <span>

#include "reward/verifiers/latex_tokens.h"

namespace tailrace {

enum class MathLabel {
  kNone,      // 2x + z, x^2: a side of an equation
  kName,      // x, a_n, f(x), f'(2), \frac{dy}{dx}, P(X = 1), E[X], \vec{v}: of any value
  kTuple,     // (p, q): of a tuple of as many values
  kRatio,     // a : b, of a ratio of as many parts
  kQuantity,  // |AB|, AB, \angle ABC, \cos A, \frac{AB}{CD}: of a constant
  kUnknowns,  // x + y, ab, \frac{a}{b}: of a constant, where it is asked for
};

MathLabel math_label_of(std::span<const LatexToken> tokens);

}  // namespace tailrace
