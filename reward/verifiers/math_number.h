// A number of an answer: exact where it is built of whole numbers by + - * / and whole powers, and
// approximate always. Letters stand for fixed numbers, so an expression with letters is a number
// too, and two expressions that agree at all points are the same. The letters are positive, as is
// meant where \sqrt{x^2} is x.
//
// Exact values are kept modulo the prime 2^62 - 57, beside a double: that needs no long arithmetic,
// so 2^1000 and 100! cost no more than 2. Different numbers that agree in both are not met by
// chance. Of a root the exact value is that of its power: \sqrt{10^{18} + 1} is not 10^9, though a
// double cannot tell them apart. Each double has a bound of its rounding error beside it, so that
// \sin \pi is 0 and e^{-40} is not.
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
  static MathNumber constant(std::complex<double> value);  // not exact: e, pi
  static MathNumber imaginary_unit();
  static MathNumber symbol(std::string_view name);  // the same name, the same number
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
  // The principal root; of a negative number and an odd degree the real one. `degree` >= 1.
  std::optional<MathNumber> root(int64_t degree) const;
  // None: the result is not finite.
  std::optional<MathNumber> apply(
      const std::function<std::complex<double>(std::complex<double>)>& function) const;

  // The value of whole numbers that a double holds exactly.
  std::optional<int64_t> as_whole() const;
  bool is_symbolic() const { return symbolic_; }

  // The rule: reward/README.md#mathematics.
  friend bool same(const MathNumber& gold, const MathNumber& given);
  // a / b is one number at all points, and not zero: what says that equations are the same.
  friend bool proportional(const MathNumber& a, const MathNumber& b);
  // `rounded` is a decimal or whole number that shows the digits of `value`, rounded or cut off:
  // 3.14 of pi.
  friend bool is_rounding(const MathNumber& value, const MathNumber& rounded);
  // Both are constants, and within 5 %: what a person may write \approx between.
  friend bool is_about(const MathNumber& a, const MathNumber& b);
  bool is_decimal() const { return decimal_; }

 private:
  // Where the letters have other values each.
  static constexpr size_t kPoints = 3;
  struct Point {
    uint64_t residue = 0;  // of the value to the power `degree_`
    std::complex<double> value;
    double error = 0;  // most that `value` may be off by
  };
  bool is_finite() const;
  bool is_exact() const { return degree_ == 1; }
  uint64_t residue_to(size_t point, int64_t degree) const;
  static bool near(const Point& a, const Point& b);
  static bool shows(const Point& rounded, const Point& value, int64_t places);
  static bool within_decimal(const MathNumber& gold, const MathNumber& given, size_t point);

  std::array<Point, kPoints> points_{};
  int64_t degree_ = 1;                  // the power that is exact; 0: none is
  bool decimal_ = false;                // written with a decimal point somewhere
  bool symbolic_ = false;               // with a letter somewhere
  std::optional<int64_t> places_ = {};  // of a literal: digits behind its decimal point
};

}  // namespace tailrace
