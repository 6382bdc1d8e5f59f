// Verifier `math`: is the final answer of the response the right one, however it is written?
//
// Evidence: {"answer": "\\frac{1}{2}" (or a number), "response": "..."}. The right answer is, by
// the first of these fields that is there, "answer", "ground_truth", the "ground_truth" of
// "reward_model", or "solution"; of a text with a mark (#### or \boxed{}) it is what is marked. A
// "solution" must have one. How the answer of a response is found: answer_text.h; with "extract":
// "strict" a mark must be there. When two answers are the same: math_answer.h, math_number.h.
// Score: 1 or 0. Metrics: success, formatted.
//
// 10% is 0.1 and not 10. Only where the right answer stands behind ####, as those of GSM8K do, the
// sign is a unit: "what percentage ..." has the answer "#### 25" there.
//
// What cannot be read as mathematics is compared as text. What would take long to compute
// (10**10**10) is not computed, and is equal to nothing but the same text. The time of a score is
// linear in the response; what is parsed has at most 2,000 bytes.
#pragma once

#include <memory>

#include "reward/verifier.h"

namespace tailrace {

std::unique_ptr<Verifier> make_math_verifier();

}  // namespace tailrace
