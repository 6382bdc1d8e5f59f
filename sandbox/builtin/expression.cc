#include "sandbox/builtin/expression.h"

#include <numeric>

namespace tailrace::sandbox {

namespace {

// Far more than six numbers and their brackets take.
constexpr size_t kMaxBytes = 4096;
// A policy can write any number of brackets, and each is a level of the parser's stack.
constexpr int kMaxDepth = 64;

std::optional<Rational> reduced(int64_t numerator, int64_t denominator) {
  // INT64_MIN has no absolute value for gcd.
  if (denominator == 0 || numerator == INT64_MIN || denominator == INT64_MIN) return std::nullopt;
  int64_t divisor = std::gcd(numerator, denominator);
  if (denominator < 0) divisor = -divisor;
  return Rational{numerator / divisor, denominator / divisor};
}

// Exact, because 1 / 3 * 3 is 1 and a tolerance would let near misses through.
std::optional<Rational> multiply(Rational a, Rational b) {
  int64_t numerator = 0, denominator = 0;
  if (__builtin_mul_overflow(a.numerator, b.numerator, &numerator)) return std::nullopt;
  if (__builtin_mul_overflow(a.denominator, b.denominator, &denominator)) return std::nullopt;
  return reduced(numerator, denominator);
}

std::optional<Rational> add(Rational a, Rational b) {
  int64_t left = 0, right = 0, numerator = 0, denominator = 0;
  if (__builtin_mul_overflow(a.numerator, b.denominator, &left)) return std::nullopt;
  if (__builtin_mul_overflow(b.numerator, a.denominator, &right)) return std::nullopt;
  if (__builtin_add_overflow(left, right, &numerator)) return std::nullopt;
  if (__builtin_mul_overflow(a.denominator, b.denominator, &denominator)) return std::nullopt;
  return reduced(numerator, denominator);
}

std::optional<Rational> apply(char op, std::optional<Rational> a, std::optional<Rational> b) {
  if (!a || !b) return std::nullopt;
  switch (op) {
    case '+':
      return add(*a, *b);
    case '-':
      return add(*a, {-b->numerator, b->denominator});  // never INT64_MIN, see reduced()
    case '*':
      return multiply(*a, *b);
    default:
      return multiply(*a, {b->denominator, b->numerator});  // reduced() refuses 0 below the line
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<Evaluation> parse() {
    Evaluation result;
    result.value = sum();
    skip_blanks();
    if (failed_ || !rest_.empty()) return std::nullopt;
    result.numbers = std::move(numbers_);
    return result;
  }

 private:
  // After a syntax error the value means nothing and failed_ is set; a value that does not exist
  // (division by zero) is none without failed_.
  std::optional<Rational> sum() {
    if (++depth_ > kMaxDepth) return fail();
    std::optional<Rational> value = product();
    while (!failed_ && (next() == '+' || next() == '-')) {
      char op = take();
      // From left to right: 8 - 3 - 2 is 3.
      value = apply(op, value, product());
    }
    --depth_;
    return value;
  }

  std::optional<Rational> product() {
    std::optional<Rational> value = factor();
    while (!failed_ && (next() == '*' || next() == '/')) {
      char op = take();
      value = apply(op, value, factor());
    }
    return value;
  }

  std::optional<Rational> factor() {
    if (next() == '(') {
      take();
      std::optional<Rational> value = sum();
      if (failed_ || next() != ')') return fail();
      take();
      return value;
    }
    return number();
  }

  std::optional<Rational> number() {
    skip_blanks();
    int64_t value = 0;
    size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      // 10^18 fits an int64_t; a longer number is not worth a check at every digit.
      if (digits == 18) return fail();
      value = value * 10 + (rest_[digits] - '0');
    }
    if (digits == 0) return fail();
    rest_.remove_prefix(digits);
    numbers_.push_back(value);
    return Rational{value, 1};
  }

  void skip_blanks() {
    while (!rest_.empty() &&
           (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\n' || rest_[0] == '\r')) {
      rest_.remove_prefix(1);
    }
  }
  char next() {
    skip_blanks();
    return rest_.empty() ? '\0' : rest_[0];
  }
  char take() {
    char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }
  std::optional<Rational> fail() {
    failed_ = true;
    return std::nullopt;
  }

  std::string_view rest_;
  std::vector<int64_t> numbers_;
  int depth_ = 0;
  bool failed_ = false;
};

}  // namespace

std::optional<Evaluation> evaluate(std::string_view text) {
  if (text.size() > kMaxBytes) return std::nullopt;
  return Parser(text).parse();
}

}  // namespace tailrace::sandbox
