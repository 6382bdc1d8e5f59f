// A number of an answer: exact where it is built of whole numbers by + - * / and whole powers, and
// approximate always. Letters stand for fixed numbers, so an expression with letters is a number
// too, and two expressions that agree at all points are the same. The letters are positive, as is
// meant where \sqrt{x^2} is x.
//
// Exact values are kept modulo the prime 2^62 - 57, beside a double: that needs no long arithmetic,
// so 2^1000 and 100! cost no more than 2. Different numbers that agree in both are not met by
// chance.
//
// Thread: any.
#pragma once

#include <array>
#include <complex>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace tailrace {

class MathNumber {
 public:
  static MathNumber whole(int64_t value);
  static MathNumber constant(std::complex<double> value);  // not exact: e, pi, i
  static MathNumber symbol(std::string_view name);         // the same name, the same number
  // Digits with a decimal point and an exponent: "12", "0.5", "1e-3".
  static std::optional<MathNumber> literal(std::string_view digits);

  MathNumber operator-() const;
  friend MathNumber operator+(const MathNumber& a, const MathNumber& b);
  friend MathNumber operator-(const MathNumber& a, const MathNumber& b) { return a + -b; }
  friend MathNumber operator*(const MathNumber& a, const MathNumber& b);
  // None: a division by zero.
  friend std::optional<MathNumber> divide(const MathNumber& a, const MathNumber& b);
  // None: not a number, or a whole power beyond 10,000, which is not computed.
  friend std::optional<MathNumber> power(const MathNumber& base, const MathNumber& exponent);
  // None: the result is not finite.
  std::optional<MathNumber> apply(
      const std::function<std::complex<double>(std::complex<double>)>& function) const;

  // Of whole numbers that a double holds exactly.
  std::optional<int64_t> as_whole() const;
  bool is_symbolic() const { return symbolic_; }

  // Exact ones are the same when they are equal. Where one was written as a decimal, within
  // 1e-6 * max(1, |gold|), within 1e-6 where either is whole, and always within 1e-4 * |gold|: six
  // digits of 1/3 stand for it and two do not. Otherwise within what doubles can tell.
  friend bool same(const MathNumber& gold, const MathNumber& given);
  // a / b is one number at all points, and not zero: what says that equations are the same.
  friend bool proportional(const MathNumber& a, const MathNumber& b);

 private:
  // Where the letters have other values each.
  static constexpr size_t kPoints = 3;
  struct Point {
    uint64_t residue = 0;
    std::complex<double> value;
  };
  bool is_finite() const;

  std::array<Point, kPoints> points_{};
  bool exact_ = true;
  bool decimal_ = false;   // written with a decimal point somewhere
  bool symbolic_ = false;  // with a letter somewhere
};

}  // namespace tailrace
