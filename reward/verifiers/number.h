// Verifier `number`: is the number in the response the right one?
//
// Evidence: {"answer": "1,234" (or a number; of "... #### 72" what follows the mark), "response":
// "..."}. The answer of a response is the number after its last mark, "#### " or \boxed{...};
// without one, its last number. Only the last 300 bytes are read, after the last </think>, so that
// listing many numbers does not pay. With "extract": "strict" the mark must be there. Numbers:
// sign, digits, thousands commas, decimals, a fraction p/q; `$` and a final full stop are dropped.
// Score: 1 when |a - b| <= 1e-6 * max(1, |b|), b the right one; else 0. Metrics: success,
// formatted.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "reward/verifier.h"

namespace tailrace {

std::unique_ptr<Verifier> make_number_verifier();

// The value of a text that is one number, as above.
std::optional<double> parse_answer(std::string_view text);

}  // namespace tailrace
