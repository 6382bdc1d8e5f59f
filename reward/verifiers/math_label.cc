#include "reward/verifiers/math_label.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "reward/verifiers/math_expression.h"
#include "reward/verifiers/math_words.h"

namespace tailrace {

namespace {

using Tokens = std::span<const LatexToken>;
using Kind = LatexToken::Kind;

// Commands that stand over a letter, or in front of a point or a figure.
constexpr std::string_view kOver[] = {"\\vec",    "\\overrightarrow", "\\overline", "\\bar",
                                      "\\hat",    "\\widehat",        "\\tilde",    "\\mathbb",
                                      "\\mathcal"};
constexpr std::string_view kFigures[] = {"\\angle", "\\measuredangle", "\\triangle"};
// Operators that have a value and are not computed.
constexpr std::string_view kOperators[] = {"\\lim", "\\sum", "\\prod", "\\int", "\\max", "\\min",
                                           "\\gcd", "\\det", "\\dim",  "\\deg", "\\Pr",  "\\arg"};
constexpr std::string_view kAngles[] = {"\\sin", "\\cos", "\\tan", "\\cot", "\\sec", "\\csc"};

template <size_t N>
bool is_one(const LatexToken& token, const std::string_view (&list)[N]) {
  return token.kind == Kind::kName && std::ranges::find(list, token.text) != std::end(list);
}

bool is_letter(const LatexToken& token) { return token.kind == Kind::kLetter; }
bool is_point(const LatexToken& token) {
  return is_letter(token) && token.text.size() == 1 && token.text[0] >= 'A' && token.text[0] <= 'Z';
}
bool is_brace(const LatexToken& token) { return token.is("{") || token.is("}"); }

int step(const LatexToken& token) {
  for (const std::string_view open : {"(", "[", "{", "\\{"})
    if (token.is(open)) return 1;
  for (const std::string_view close : {")", "]", "}", "\\}"})
    if (token.is(close)) return -1;
  return 0;
}

// The number of tokens of the group at the front, or of the one token. 0: it is not closed.
size_t group_size(Tokens tokens) {
  int depth = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    depth += step(tokens[i]);
    if (depth == 0) return i + 1;
    if (depth < 0) break;
  }
  return 0;
}

bool is_group(Tokens tokens, std::string_view open) {
  return tokens.size() > 2 && tokens.front().is(open) && group_size(tokens) == tokens.size();
}

Tokens without_braces(Tokens tokens) {
  while (is_group(tokens, "{")) tokens = tokens.subspan(1, tokens.size() - 2);
  return tokens;
}

template <class Divides>
std::vector<Tokens> parts_of(Tokens tokens, Divides divides) {
  std::vector<Tokens> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    depth += step(tokens[i]);
    if (depth != 0 || !divides(tokens[i])) continue;
    parts.push_back(tokens.subspan(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(tokens.subspan(begin));
  return parts;
}

// AB: a segment, a chord, an arc.
bool is_segment(Tokens tokens) {
  tokens = without_braces(tokens);
  if (tokens.size() > 1 && (is_one(tokens[0], kOver) || is_one(tokens[0], kFigures)))
    tokens = without_braces(tokens.subspan(1));
  // The segment NO is a word to the lexer.
  if (tokens.size() == 1 && tokens[0].is("no")) return true;
  return tokens.size() > 1 && std::ranges::all_of(tokens, is_point);
}

// A letter with what is over it, an index and primes. `rest`: what stands behind it.
bool takes_letter(Tokens& rest) {
  if (rest.empty()) return false;
  if (is_one(rest[0], kOver)) {
    const size_t size = group_size(rest.subspan(1));
    if (size == 0) return false;
    const Tokens under = without_braces(rest.subspan(1, size));
    if (under.empty() || !std::ranges::all_of(under, is_letter)) return false;
    rest = rest.subspan(1 + size);
  } else if (is_letter(rest[0]) || rest[0].kind == Kind::kWord) {
    rest = rest.subspan(1);
  } else {
    return false;
  }
  if (!rest.empty() && rest[0].is("_")) {
    const size_t size = group_size(rest.subspan(1));
    if (size == 0) return false;
    rest = rest.subspan(1 + size);
  }
  while (!rest.empty() && rest[0].is("'")) rest = rest.subspan(1);
  return true;
}

// f(2), f'(x), f^{-1}(3), P(X = 1), E[X]. n(n + 1) is a product.
bool is_applied(Tokens tokens) {
  Tokens rest = tokens;
  if (!takes_letter(rest)) return false;
  const std::string_view name = tokens[0].text;
  const bool function =
      tokens[0].kind != Kind::kLetter ||
      (name.size() == 1 && std::string_view("fghFGHPE").find(name[0]) != std::string_view::npos);
  if (function && rest.size() > 2 && rest[0].is("^")) {
    const size_t size = group_size(rest.subspan(1));
    if (size == 0) return false;
    rest = rest.subspan(1 + size);
  }
  if (is_group(rest, "[")) return name == "E" || function;
  if (!is_group(rest, "(")) return false;
  const Tokens inner = rest.subspan(1, rest.size() - 2);
  if (function || inner.size() == 1) return true;
  const auto value = evaluate_math(inner);
  return value && !value->is_symbolic();
}

bool is_name(Tokens tokens) {
  if (tokens.size() == 1 && (tokens[0].is("not") || tokens[0].is("\\not"))) return false;
  Tokens rest = tokens;
  return (takes_letter(rest) && rest.empty()) || is_applied(tokens);
}

bool all_names(const std::vector<Tokens>& parts) {
  return parts.size() > 1 && std::ranges::all_of(parts, [](Tokens part) {
           part = without_braces(part);
           return is_name(part) || is_segment(part);
         });
}

// \angle ABC, m\angle A, S_{\triangle ABC}, [ABC], |AB|, |\vec{v}|, area of ABC.
bool is_figure(Tokens tokens) {
  if (is_segment(tokens)) return true;
  if (is_group(tokens, "[")) return is_segment(tokens.subspan(1, tokens.size() - 2));
  if (tokens.size() > 2 && tokens.front().is("|") && tokens.back().is("|")) {
    const Tokens inner = tokens.subspan(1, tokens.size() - 2);
    return is_segment(inner) || (is_one(inner[0], kOver) && is_name(inner));
  }
  if (tokens.size() > 2 && tokens[0].is("m") && is_one(tokens[1], kFigures))
    tokens = tokens.subspan(1);
  const auto is_part = [](const LatexToken& token) {
    return is_letter(token) || token.kind == Kind::kWord || token.kind == Kind::kNumber ||
           is_brace(token) || is_one(token, kFigures);
  };
  if (tokens.size() < 2 || !std::ranges::all_of(tokens, is_part)) return false;
  return is_one(tokens[0], kFigures) || (tokens[0].kind == Kind::kWord &&
                                         std::ranges::none_of(tokens, [](const LatexToken& token) {
                                           return token.kind == Kind::kNumber ||
                                                  changes_value(token.text);
                                         }));
}

// \cos A, \tan\angle ABC, \sin 2\theta, \lim_{x \to 0} f(x).
bool is_function(Tokens tokens) {
  if (tokens.size() < 2) return false;
  return is_one(tokens[0], kOperators) ||
         (is_one(tokens[0], kAngles) && std::ranges::any_of(tokens, [](const LatexToken& token) {
            return is_letter(token) && !token.is("\\pi") && !token.is("e");
          }));
}

// The two arguments of a \frac that is all of it, or the sides of one `/`.
std::vector<Tokens> quotient(Tokens tokens) {
  if (!tokens.empty() && tokens[0].is("\\frac")) {
    const size_t above = group_size(tokens.subspan(1));
    if (above == 0 || 1 + above >= tokens.size()) return {};
    const Tokens below = tokens.subspan(1 + above);
    if (group_size(below) != below.size()) return {};
    return {without_braces(tokens.subspan(1, above)), without_braces(below)};
  }
  std::vector<Tokens> parts = parts_of(tokens, [](const LatexToken& t) { return t.is("/"); });
  return parts.size() == 2 ? parts : std::vector<Tokens>();
}

// dy and dx, of which the quotient is a derivative.
bool is_differential(Tokens tokens) {
  return tokens.size() == 2 && tokens[0].is("d") && is_letter(tokens[1]);
}

// Letters with their indices, and signs between them: x + y, ab, a_1 a_2.
bool are_unknowns(Tokens tokens) {
  bool any = false;
  while (!tokens.empty()) {
    if (any && (tokens[0].is("+") || tokens[0].is("*"))) tokens = tokens.subspan(1);
    if (tokens.empty() || !is_letter(tokens[0]) || !takes_letter(tokens)) return false;
    any = true;
  }
  return any;
}

}  // namespace

MathLabel math_label_of(std::span<const LatexToken> tokens) {
  if (tokens.empty()) return MathLabel::kNone;
  if (is_name(tokens)) return MathLabel::kName;
  if (is_group(tokens, "(") &&
      all_names(parts_of(tokens.subspan(1, tokens.size() - 2),
                         [](const LatexToken& t) { return t.is(",") || t.is(";"); })))
    return MathLabel::kTuple;
  if (all_names(parts_of(tokens, [](const LatexToken& t) { return t.is(":"); })))
    return MathLabel::kRatio;
  if (is_figure(tokens) || is_function(tokens)) return MathLabel::kQuantity;
  const std::vector<Tokens> parts = quotient(tokens);
  if (parts.size() == 2) {
    if (std::ranges::all_of(parts, is_differential)) return MathLabel::kName;
    if (std::ranges::all_of(parts, is_figure)) return MathLabel::kQuantity;
    if (std::ranges::all_of(parts, are_unknowns)) return MathLabel::kUnknowns;
  }
  return are_unknowns(tokens) ? MathLabel::kUnknowns : MathLabel::kNone;
}

}  // namespace tailrace
