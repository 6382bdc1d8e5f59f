// Finds the final answer in a response of mathematics.
//
// The last mark counts, so that listing many answers does not pay: "#### 42" (GSM8K, Cobbe et al.
// 2021) up to the end of its line, or \boxed{42} and \fbox{42} (MATH, Hendrycks et al. 2021) up to
// the brace that closes it. A box that nothing closes was cut off, and holds no answer. Boxes that
// stand together are one list: between them are signs of a list ("," "and" "or" \quad) and of
// formulas alone, and in front of each perhaps the same name ("$x = \boxed{2}$ or $x =
// \boxed{3}$").
//
// Time: linear in the length of the response.
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

struct AnswerText {
  std::string text;
  // The named boxes of a response: "x = 2, y = 3", while `text` is the last box.
  std::string named = {};
  bool marked = false;   // by #### or a box
  bool percent = false;  // a percent sign, or the word, stands behind the box or the last number
};

struct AnswerRules {
  bool strict = false;  // only a marked answer counts
  // The right answer is a term, so that one may be given (is_open_term()).
  bool terms = false;
};

// Without a mark the answer is in the last 300 bytes: what follows the last "answer is" or
// "answer:", or the last formula between $ or \( \), or the whole response. Where that is a
// sentence, or a term that nobody has worked out, it is the last number of it. None: no answer.
std::optional<AnswerText> find_answer(std::string_view response, AnswerRules rules);

// "18 - 6", "x = 3 * (4 + 5)" and "48 / 2 boxes": numbers with signs between them, of which nobody
// has said what they come to. It has the value of the right answer whenever it repeats the
// question. "18 - 6 = 12", "1/2", "-3", "2^10", "3 * 10^5" and "2 \sqrt{2}" are none.
bool is_open_term(std::string_view text);

// The marked answer alone, of a response or of the text of a right answer (`is_right`). Boxes with
// different names ("$x = \boxed{2}$, $y = \boxed{3}$") are a list with its names in a right answer;
// of a response that list is `named`.
std::optional<AnswerText> find_marked_answer(std::string_view text, bool is_right);

// The last run of number characters (digits , . $ - /) with a digit in it.
std::optional<std::string_view> last_number(std::string_view text);

}  // namespace tailrace
