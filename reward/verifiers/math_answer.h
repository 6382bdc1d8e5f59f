// The value of a final answer, and whether two are the same: a number or an expression, a tuple or
// an interval, a set, a list, a union, a matrix, an equation or inequality, or a text.
//
// Thread: any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reward/verifiers/math_label.h"
#include "reward/verifiers/math_number.h"

namespace tailrace {

struct MathAnswer {
  enum class Kind {
    kText,      // what is none of the others
    kNumber,    // number
    kSequence,  // items between `open` and `close`; both empty: a list without brackets; `open` is
                // ":" of a ratio or a time of day
    kRelation,  // items with `signs` between them
  };
  Kind kind = Kind::kText;
  std::string plain = {};                 // of its tokens: answers of equal text are the same
  std::optional<MathNumber> number = {};  // of letters as well that are compared as text: AB
  bool degrees = false;                   // 30^\circ, of which `number` is 30
  std::vector<MathAnswer> items = {};
  std::string open = {}, close = {};
  bool ordered = true;
  std::vector<std::string> signs = {};
  MathLabel label = MathLabel::kNone;  // of a relation: what its first item is
  size_t num_labels = 0;  // of a relation: names and quantities at its front, as in "x = y = 5"
  std::vector<std::string> units = {};  // behind the value of the whole answer
};

// None: empty, longer than kMaxAnswerBytes, or nested too deep.
std::optional<MathAnswer> parse_math(std::string_view text);

// Whether it says which value is whose: "x = 3, y = 2", "(x, y) = (3, 2)".
bool has_names(const MathAnswer& answer);

// Not symmetric: of an answer "x = 5" only its value is wanted when the right one is "5", and an
// interval may be the answer to an inequality.
bool same(const MathAnswer& gold, const MathAnswer& given);

}  // namespace tailrace
