// Verifier `countdown`: did the formula use each given number once and reach the target?
//
// Evidence: {"numbers": [44, 19, 35], "target": 98, "response": "... <answer>44 + 19 +
// 35</answer>"}. Score: 1 when the last <answer> holds a formula of + - * / and brackets
// (sandbox/builtin/expression.h) with exactly these numbers and exactly this value; 0.1 when there
// is an answer that is not so; 0 without an answer. Metrics: success, formatted.
#pragma once

#include <memory>

#include "reward/verifier.h"

namespace tailrace {

std::unique_ptr<Verifier> make_countdown_verifier();

}  // namespace tailrace
