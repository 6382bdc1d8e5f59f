#include "reward/verifiers/math_expression.h"

#include <cmath>
#include <complex>
#include <numbers>
#include <string>
#include <utility>

namespace tailrace {

namespace {

using Complex = std::complex<double>;
using Number = std::optional<MathNumber>;

// The text is a policy's, and the parser calls itself: without a bound some thousand brackets would
// end the stack of the process that verifies.
constexpr int kMaxDepth = 60;
// Bounds on what a few characters of an answer may ask for.
constexpr int64_t kMaxFactorial = 1000;
constexpr int64_t kMaxRoot = 1000;

Complex tangent(Complex x) { return std::sin(x) / std::cos(x); }

// By name, without the backslash. Null: no function of one number.
Complex (*function_of(std::string_view name))(Complex) {
  using F = Complex (*)(Complex);
  static constexpr struct {
    std::string_view name;
    F function;
  } kTable[] = {
      {"sin", [](Complex x) { return std::sin(x); }},
      {"cos", [](Complex x) { return std::cos(x); }},
      {"tan", [](Complex x) { return tangent(x); }},
      {"cot", [](Complex x) { return 1.0 / tangent(x); }},
      {"sec", [](Complex x) { return 1.0 / std::cos(x); }},
      {"csc", [](Complex x) { return 1.0 / std::sin(x); }},
      {"arcsin", [](Complex x) { return std::asin(x); }},
      {"arccos", [](Complex x) { return std::acos(x); }},
      {"arctan", [](Complex x) { return std::atan(x); }},
      {"sinh", [](Complex x) { return std::sinh(x); }},
      {"cosh", [](Complex x) { return std::cosh(x); }},
      {"tanh", [](Complex x) { return std::tanh(x); }},
      {"ln", [](Complex x) { return std::log(x); }},
      {"log", [](Complex x) { return std::log(x); }},
      {"lg", [](Complex x) { return std::log(x) / std::numbers::ln10; }},
      {"cbrt", [](Complex x) { return Complex(std::cbrt(x.real())); }},
  };
  for (const auto& row : kTable)
    if (row.name == name) return row.function;
  return nullptr;
}

bool takes_angle(std::string_view name) {
  for (const std::string_view function : {"sin", "cos", "tan", "cot", "sec", "csc"})
    if (name == function) return true;
  return false;
}

class Parser {
 public:
  Parser(std::span<const LatexToken> tokens, bool minus) : tokens_(tokens), minus_(minus) {}

  Number all() {
    Number value = sum();
    return at_ == tokens_.size() ? value : std::nullopt;
  }

 private:
  const LatexToken* peek(size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? &tokens_[at_ + ahead] : nullptr;
  }
  bool next_is(std::string_view text) const { return peek() && peek()->is(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    ++at_;
    return true;
  }

  Number sum() {
    const bool negative =
        next_is("-") || (next_is("\\pm") && minus_) || (next_is("\\mp") && !minus_);
    if (next_is("-") || next_is("+") || next_is("\\pm") || next_is("\\mp")) ++at_;
    Number total = signed_product();
    if (total && negative) total = -*total;
    while (total && peek()) {
      bool subtract = false;
      if (next_is("-") || next_is("+"))
        subtract = next_is("-");
      else if (next_is("\\pm") || next_is("\\mp"))
        subtract = next_is("\\pm") == minus_;
      else
        break;
      ++at_;
      const Number term = signed_product();
      if (!term) return std::nullopt;
      total = subtract ? *total - *term : *total + *term;
    }
    return total;
  }

  // Whether a factor may begin here without a sign before it. "2 3" is no product.
  bool starts_factor() const {
    const LatexToken* token = peek();
    if (token == nullptr) return false;
    const bool closed = at_ > 0 && (tokens_[at_ - 1].is(")") || tokens_[at_ - 1].is("}"));
    if (token->kind == LatexToken::Kind::kNumber) return closed;
    return token->kind == LatexToken::Kind::kLetter || token->is("(") || token->is("{") ||
           (token->kind == LatexToken::Kind::kName && !token->text.starts_with("\\end"));
  }

  Number product() {
    Number total = mixed();
    while (total && peek()) {
      const bool over = next_is("/");
      if (over || next_is("*"))
        ++at_;
      else if (!starts_factor())
        break;
      const Number factor = signed_power();
      if (!factor) return std::nullopt;
      total = over ? divide(*total, *factor) : Number(*total * *factor);
    }
    return total;
  }

  // "--5" is 5, and "3 - -2" is 5.
  Number signed_product() {
    const bool negative = take("-");
    if (!negative) take("+");
    const Number value = product();
    return value && negative ? Number(-*value) : value;
  }

  bool is_digits(size_t ahead) const {
    const LatexToken* token = peek(ahead);
    return token && token->kind == LatexToken::Kind::kNumber &&
           token->text.find_first_not_of("0123456789") == std::string::npos;
  }

  // "1\frac{1}{2}" and "1 1/2": a whole and a fraction.
  Number mixed() {
    const auto is = [&](size_t ahead, std::string_view text) {
      return peek(ahead) && peek(ahead)->is(text);
    };
    const bool typeset =
        is_digits(0) && is(1, "\\frac") && is_digits(3) && is(4, "}") && is_digits(6) && is(7, "}");
    const bool plain = is_digits(0) && is_digits(1) && is(2, "/") && is_digits(3);
    if (!typeset && !plain) return power_of();
    const Number whole = MathNumber::literal(tokens_[at_].text),
                 above = MathNumber::literal(tokens_[at_ + (typeset ? 3 : 1)].text),
                 below = MathNumber::literal(tokens_[at_ + (typeset ? 6 : 3)].text);
    at_ += typeset ? 8 : 4;
    if (!whole || !above || !below) return std::nullopt;
    const Number part = divide(*above, *below);
    if (!part) return std::nullopt;
    const MathNumber value = *whole + *part;
    return take("°") ? degrees(value) : value;
  }

  Number signed_power() {
    if (++depth_ > kMaxDepth) return std::nullopt;
    const bool negative = take("-");
    if (!negative) take("+");
    Number value = negative ? signed_power() : power_of();
    --depth_;
    return value && negative ? Number(-*value) : value;
  }

  Number power_of() {
    Number value = primary();
    while (value && (next_is("!") || next_is("%") || next_is("°"))) {
      value = take("!") ? factorial(*value) : take("°") ? degrees(*value) : percent(*value);
    }
    if (!value || !take("^")) return value;
    const Number exponent = signed_power();
    return exponent ? power(*value, *exponent) : std::nullopt;
  }

  // 90° is the answer 90. Only a function of an angle wants its radians.
  Number degrees(const MathNumber& value) const {
    if (!in_angle_) return value;
    return divide(value * MathNumber::constant(std::numbers::pi), MathNumber::whole(180));
  }

  Number percent(const MathNumber& value) {
    ++at_;
    return divide(value, MathNumber::whole(100));
  }

  static Number factorial(const MathNumber& value) {
    const std::optional<int64_t> n = value.as_whole();
    if (!n)
      return value.is_symbolic() ? value.apply([](Complex x) { return std::tgamma(x.real() + 1); })
                                 : std::nullopt;
    if (*n < 0 || *n > kMaxFactorial) return std::nullopt;
    MathNumber product = MathNumber::whole(1);
    for (int64_t i = 2; i <= *n; ++i) product = product * MathNumber::whole(i);
    return product;
  }

  Number primary() {
    if (++depth_ > kMaxDepth || !peek()) return std::nullopt;
    Number value = primary_of(tokens_[at_++]);
    --depth_;
    return value;
  }

  Number closed(std::string_view close) {
    Number value = sum();
    return take(close) ? value : std::nullopt;
  }

  Number primary_of(const LatexToken& token) {
    if (token.kind == LatexToken::Kind::kNumber) {
      // 776_8 is written in another base.
      return next_is("_") ? std::nullopt : MathNumber::literal(token.text);
    }
    if (token.kind == LatexToken::Kind::kLetter) return letter(token.text);
    if (token.is("(")) return closed(")");
    if (token.is("[")) return closed("]");
    if (token.is("{")) return closed("}");
    if (token.is("|")) {
      return constant(closed("|"), [](Complex x) { return std::abs(x); });
    }
    if (token.is("\\lfloor"))
      return constant(closed("\\rfloor"), [](Complex x) { return std::floor(x.real()); });
    if (token.is("\\lceil"))
      return constant(closed("\\rceil"), [](Complex x) { return std::ceil(x.real()); });
    if (token.kind == LatexToken::Kind::kName) return command(token.text);
    return std::nullopt;
  }

  // Letters stand for positive numbers, of which |x| is x: with letters there is no value.
  static Number constant(const Number& value, double (*function)(Complex)) {
    if (!value || value->is_symbolic()) return std::nullopt;
    return value->apply([function](Complex x) { return Complex(function(x)); });
  }

  Number letter(std::string name) {
    if (name == "\\pi") return MathNumber::constant(std::numbers::pi);
    if (name == "e" && !next_is("_")) return MathNumber::constant(std::numbers::e);
    if (name == "i" && !next_is("_")) return MathNumber::imaginary_unit();
    if (take("_")) {
      // An index belongs to the name.
      const size_t begin = at_;
      if (!skip_argument()) return std::nullopt;
      for (size_t i = begin; i < at_; ++i)
        if (!tokens_[i].is("{") && !tokens_[i].is("}")) name += " " + tokens_[i].text;
    }
    // f(x), O(1) and W(2) are values of functions; n(n + 1) is a product.
    const bool function =
        name.size() == 1 && std::string_view("fghFGHP").find(name[0]) != std::string_view::npos;
    const bool applied = next_is("(") && (function || (peek(2) && peek(2)->is(")")));
    if (next_is("'") || applied) return std::nullopt;
    return MathNumber::symbol(name);
  }

  bool skip_argument() {
    if (!peek()) return false;
    int depth = 0;
    do {
      depth += next_is("{") ? 1 : next_is("}") ? -1 : 0;
      ++at_;
    } while (depth > 0 && peek());
    return depth == 0;
  }

  Number command(std::string_view name) {
    if (name == "\\frac") {
      const Number above = group(), below = group();
      return above && below ? divide(*above, *below) : std::nullopt;
    }
    if (name == "\\binom") return binomial();
    if (name == "\\sqrt") return root();
    if (name == "\\exp") {
      const Number exponent = operand();
      return exponent ? power(MathNumber::constant(std::numbers::e), *exponent) : std::nullopt;
    }
    const auto function = function_of(name.substr(1));
    if (function == nullptr) return std::nullopt;
    Number base, exponent;
    if (take("_")) {
      base = name == "\\log" ? primary() : std::nullopt;
      if (!base) return std::nullopt;
    }
    if (take("^")) {
      exponent = primary();
      // \sin^{-1} is another function, and \sin^n x a power.
      const auto whole = exponent ? exponent->as_whole() : std::nullopt;
      if (!exponent || (whole && *whole < 0)) return std::nullopt;
    }
    const bool outer = std::exchange(in_angle_, takes_angle(name.substr(1)));
    const Number value = operand();
    in_angle_ = outer;
    Number result = value ? value->apply(function) : std::nullopt;
    if (result && base) {
      const Number scale = base->apply(function);
      result = scale ? divide(*result, *scale) : std::nullopt;
    }
    if (!result || !exponent) return result;
    return power(*result, *exponent);
  }

  Number group() { return take("{") ? closed("}") : std::nullopt; }

  // The argument of a function: a bracket, or factors up to the next sign or function.
  Number operand() {
    if (next_is("(") || next_is("{") || next_is("[") || next_is("|")) {
      const Number bracket = primary();
      return bracket && take("°") ? degrees(*bracket) : bracket;  // \sin(30)^\circ
    }
    Number value = signed_power();
    while (value && starts_factor() &&
           !(peek()->kind == LatexToken::Kind::kName && !next_is("\\frac"))) {
      const Number factor = power_of();
      value = factor ? Number(*value * *factor) : std::nullopt;
    }
    return value;
  }

  Number root() {
    Number degree = MathNumber::whole(2);
    if (take("[")) degree = closed("]");
    const Number of = primary();
    const auto n = degree ? degree->as_whole() : std::nullopt;
    if (!of) return std::nullopt;
    if (n && *n > 0 && *n <= kMaxRoot) return of->root(*n);
    if (!degree) return std::nullopt;
    const Number by = divide(MathNumber::whole(1), *degree);
    return by ? power(*of, *by) : std::nullopt;
  }

  Number binomial() {
    const Number above = group(), below = group();
    if (!above || !below) return std::nullopt;
    const auto k = below->as_whole();
    if (!k || *k < 0 || *k > kMaxFactorial) return std::nullopt;
    // n (n-1) ... (n-k+1) / k!, which holds for a letter n too.
    MathNumber product = MathNumber::whole(1);
    for (int64_t i = 0; i < *k; ++i) product = product * (*above - MathNumber::whole(i));
    const Number factorials = factorial(MathNumber::whole(*k));
    return divide(product, *factorials);
  }

  const std::span<const LatexToken> tokens_;
  const bool minus_;
  size_t at_ = 0;
  int depth_ = 0;
  bool in_angle_ = false;  // in what \sin and its kin are applied to
};

}  // namespace

std::optional<MathNumber> evaluate_math(std::span<const LatexToken> tokens, bool minus) {
  if (tokens.empty()) return std::nullopt;
  return Parser(tokens, minus).all();
}

}  // namespace tailrace
