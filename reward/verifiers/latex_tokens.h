// The tokens of an answer, written in LaTeX or as plain text. They no longer depend on how the
// answer was typeset: `$`, spacing, \left, \dfrac, \text, thousands commas, and units behind a
// value are gone, and signs of Unicode are those of LaTeX.
//
//   \dfrac12 \text{ cm}   ->  \frac { 1 } { 2 }
//   1,234 or 1{,}234      ->  1234            (1, 234 is a list)
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

struct LatexToken {
  enum class Kind {
    kNumber,  // 12, 0.5, 1.2e3
    kLetter,  // a letter or a symbol of one: x, \alpha, \pi, \infty
    kWord,    // of a text, in lower case from four letters on
    kName,    // a command or a function: \frac, \sin
    kSign,    // all else: + ( \{ <= or \cup
  };
  Kind kind = Kind::kSign;
  std::string text;
  bool upright = false;  // it stood in \text{}

  bool is(std::string_view other) const { return text == other; }
};

// Longer answers are none: what is parsed has a bound, whatever a policy writes.
constexpr size_t kMaxAnswerBytes = 2000;

// None: longer than kMaxAnswerBytes, or nested too deep. `units`: where to put the units of
// math_words.h that were left out behind the value, in their order, such as "km" and "h".
std::optional<std::vector<LatexToken>> latex_tokens(std::string_view text,
                                                    std::vector<std::string>* units = nullptr);

// Their text, braces around one token left out, and degree signs outside of functions too: equal
// texts are equal answers.
std::string plain_text(const std::vector<LatexToken>& tokens);

}  // namespace tailrace
