#include "reward/verifiers/math_number.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>

#include "core/base/random.h"

namespace tailrace {

namespace {

using Complex = std::complex<double>;
__extension__ using Wide = unsigned __int128;

// Not 2^61 - 1, of which 2^61 is 1: powers of two would repeat.
constexpr uint64_t kPrime = (uint64_t{1} << 62) - 57;
constexpr int64_t kMaxPower = 10'000;

uint64_t residue_of(int64_t value) {
  const auto rest = value % static_cast<int64_t>(kPrime);
  return rest < 0 ? kPrime - static_cast<uint64_t>(-rest) : static_cast<uint64_t>(rest);
}

uint64_t times(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<Wide>(a) * b % kPrime);
}

uint64_t power_of(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base = times(base, base))
    if (exponent & 1) result = times(result, base);
  return result;
}

// By Fermat's little theorem.
uint64_t inverse(uint64_t value) { return power_of(value, kPrime - 2); }

bool finite(Complex value) { return std::isfinite(value.real()) && std::isfinite(value.imag()); }

// Roots of roots beyond this degree are not exact.
constexpr int64_t kMaxDegree = 60;

// The rounding error of one operation; functions of the library are less exact.
constexpr double kUnitRoundoff = std::numeric_limits<double>::epsilon() / 2;
constexpr double kFunctionError = 8 * kUnitRoundoff;
// For what the bounds of errors leave out: products of them, and those of complex operations.
constexpr double kErrorMargin = 2;
// Whatever the bounds say, numbers further apart than this are not the same ...
constexpr double kRounding = 1e-9;
constexpr double kZeroBound = 1e-12;  // (\sin \pi in doubles is 1e-16)
// ... and one that is less certain than this, such as \tan(\pi/2), is the same as none.
constexpr double kMostDoubt = 1e-6;

bool close(Complex a, Complex b) {
  return std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
}

bool is_whole(Complex value) {
  return value.imag() == 0 && value.real() == std::floor(value.real());
}

// No product of complex parts: (inf + 0i) * (2 + 0i) would be no number.
Complex product(Complex a, Complex b) {
  return a.imag() == 0 && b.imag() == 0 ? Complex(a.real() * b.real()) : a * b;
}

// Not -0 in the imaginary part: the root of -1 - 0i would be -i.
Complex negative(Complex value) { return {-value.real(), value.imag() == 0 ? 0.0 : -value.imag()}; }

// The power of both whose exact value is known; 0: of one none is.
int64_t common_degree(int64_t a, int64_t b) {
  const int64_t degree = std::lcm(a, b);
  return degree <= kMaxDegree ? degree : 0;
}

}  // namespace

MathNumber MathNumber::whole(int64_t value) {
  MathNumber number;
  number.points_.fill({.residue = residue_of(value), .value = static_cast<double>(value)});
  return number;
}

MathNumber MathNumber::constant(Complex value) {
  MathNumber number;
  number.points_.fill({.residue = 0, .value = value, .error = kUnitRoundoff * std::abs(value)});
  number.degree_ = 0;
  return number;
}

MathNumber MathNumber::imaginary_unit() {
  MathNumber number = constant(Complex(0, 1));
  // Exact as a root is, by its power: i^2 is -1.
  number.points_.fill({.residue = kPrime - 1, .value = Complex(0, 1), .error = 0});
  number.degree_ = 2;
  return number;
}

MathNumber MathNumber::symbol(std::string_view name) {
  MathNumber number;
  // Drawn from the name alone, so that the letter is one number in both answers, and in every run:
  // a score must not change from call to call.
  uint64_t key = 0x6c65'7474'6572;  // "letter"
  for (const char c : name) key = mix({key, static_cast<unsigned char>(c)});
  for (size_t i = 0; i < kPoints; ++i) {
    // From 1 to 3, so that powers stay small and roots real; in 1 / 2^20, which doubles hold.
    const auto steps = static_cast<int64_t>((1 << 20) + mix({key, i}) % (1 << 21));
    number.points_[i] = {.residue = times(residue_of(steps), inverse(1 << 20)),
                         .value = static_cast<double>(steps) / (1 << 20),
                         .error = 0};
  }
  number.symbolic_ = true;
  return number;
}

std::optional<MathNumber> MathNumber::literal(std::string_view digits) {
  Point point;
  const size_t mark = digits.find('e');
  const std::string_view mantissa = digits.substr(0, mark);
  const bool decimal = mantissa.find('.') != std::string_view::npos;
  int64_t shift = 0;
  for (bool fraction = false; const char c : mantissa) {
    if (c == '.') {
      fraction = true;
      continue;
    }
    point.residue = (times(point.residue, 10) + static_cast<uint64_t>(c - '0')) % kPrime;
    shift -= fraction;
  }
  if (mark != std::string_view::npos) {
    std::string exponent(digits.substr(mark + 1));
    if (exponent.size() > 6) return std::nullopt;
    shift += std::stoll(exponent);
  }
  if (std::abs(shift) > kMaxPower) return std::nullopt;
  const uint64_t scale = power_of(10, static_cast<uint64_t>(std::abs(shift)));
  point.residue = times(point.residue, shift < 0 ? inverse(scale) : scale);
  const double value = std::strtod(std::string(digits).c_str(), nullptr);
  point.value = value;
  // Whole numbers that a double holds have no error.
  point.error =
      value == std::floor(value) && value < 9e15 && shift >= 0 ? 0 : kUnitRoundoff * value;
  MathNumber number;
  number.points_.fill(point);
  number.decimal_ = decimal;
  number.places_ = -shift;
  return number;
}

// The residue of the value to the power `degree`, a multiple of degree_.
uint64_t MathNumber::residue_to(size_t point, int64_t degree) const {
  return power_of(points_[point].residue, static_cast<uint64_t>(degree / degree_));
}

bool MathNumber::is_finite() const {
  return std::ranges::all_of(points_, [](const Point& point) { return finite(point.value); });
}

MathNumber MathNumber::operator-() const {
  MathNumber number = *this;
  for (Point& point : number.points_) {
    // The residue is of a power, and an even one has no sign.
    const bool turns = degree_ % 2 != 0 && point.residue != 0;
    point.residue = turns ? kPrime - point.residue : point.residue;
    point.value = negative(point.value);
  }
  return number;
}

MathNumber operator+(const MathNumber& a, const MathNumber& b) {
  MathNumber sum = a;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    MathNumber::Point& to = sum.points_[i];
    to.residue = (a.points_[i].residue + b.points_[i].residue) % kPrime;
    to.value += b.points_[i].value;
    to.error += b.points_[i].error + kUnitRoundoff * std::abs(to.value);
  }
  // Powers of a sum are no sums of powers, so a sum with a root in it is not exact.
  sum.degree_ = a.is_exact() && b.is_exact() ? 1 : 0;
  sum.decimal_ |= b.decimal_;
  sum.symbolic_ |= b.symbolic_;
  sum.places_.reset();
  return sum;
}

MathNumber operator*(const MathNumber& a, const MathNumber& b) {
  MathNumber out = a;
  out.degree_ = common_degree(a.degree_, b.degree_);
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &x = a.points_[i], &y = b.points_[i];
    MathNumber::Point& to = out.points_[i];
    if (out.degree_ > 0)
      to.residue = times(a.residue_to(i, out.degree_), b.residue_to(i, out.degree_));
    to.value = product(x.value, y.value);
    to.error = std::abs(x.value) * y.error + std::abs(y.value) * x.error + x.error * y.error +
               2 * kUnitRoundoff * std::abs(to.value);
  }
  out.decimal_ |= b.decimal_;
  out.symbolic_ |= b.symbolic_;
  out.places_.reset();
  return out;
}

std::optional<MathNumber> divide(const MathNumber& a, const MathNumber& b) {
  MathNumber under = b;
  for (MathNumber::Point& point : under.points_) {
    const double size = std::abs(point.value);
    if (b.degree_ > 0 ? point.residue == 0 : size <= kErrorMargin * point.error)
      return std::nullopt;
    if (b.degree_ > 0) point.residue = inverse(point.residue);
  }
  // The quotient of the doubles and not a * (1 / b), which rounds twice.
  MathNumber out = a * under;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &x = a.points_[i], &y = b.points_[i];
    MathNumber::Point& to = out.points_[i];
    to.value = x.value / y.value;
    to.error = (x.error + std::abs(to.value) * y.error) / std::abs(y.value) +
               2 * kUnitRoundoff * std::abs(to.value);
  }
  return out;
}

std::optional<MathNumber> power(const MathNumber& base, const MathNumber& exponent) {
  const std::optional<int64_t> whole = exponent.as_whole();
  if (whole && std::abs(*whole) > kMaxPower) return std::nullopt;
  // 2^{3/2}: a root of a power.
  for (int64_t degree = 2; !whole && exponent.is_exact() && degree <= 12; ++degree) {
    const std::optional<int64_t> above = (exponent * MathNumber::whole(degree)).as_whole();
    if (!above || base.degree_ == 0) continue;
    const auto raised = power(base, MathNumber::whole(*above));
    // Not of a negative number, of which the power may have lost the sign.
    const bool positive = std::ranges::all_of(base.points_, [](const MathNumber::Point& point) {
      return point.value.imag() == 0 && point.value.real() > 0;
    });
    if (raised && positive && raised->is_finite()) return raised->root(degree);
  }
  MathNumber out = base * exponent;  // for its flags
  // Where x^d is exact, (x^n)^{d / gcd(d, n)} is a whole power of x^d: \sqrt{2}^2 becomes exact
  // itself.
  const int64_t shared = whole ? std::gcd(base.degree_, *whole) : 0;
  out.degree_ = whole && base.degree_ > 0 ? base.degree_ / shared : 0;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &from = base.points_[i], &by = exponent.points_[i];
    MathNumber::Point& to = out.points_[i];
    const bool zero = base.degree_ > 0 ? from.residue == 0 : from.value == 0.0;
    if (zero && !(whole && *whole > 0)) return std::nullopt;
    if (out.degree_ > 0) {
      to.residue = power_of(from.residue, static_cast<uint64_t>(std::abs(*whole) / shared));
      if (*whole < 0) to.residue = inverse(to.residue);
    }
    const bool real =
        from.value.imag() == 0 && by.value.imag() == 0 && (from.value.real() > 0 || whole);
    to.value = real ? Complex(std::pow(from.value.real(), by.value.real()))
                    : std::pow(from.value, by.value);
    const double size = std::abs(to.value);
    to.error = zero ? from.error
                    : size * (std::abs(by.value) * from.error / std::abs(from.value) +
                              std::abs(std::log(from.value)) * by.error + kFunctionError);
    // e^{-1000} is below doubles, and not 0. Of letters the other points tell.
    if (size == 0 && !out.symbolic_ && out.degree_ == 0) return std::nullopt;
    if (size == 0 && !zero) to.error = 0;
    if (out.degree_ == 0 && !finite(to.value)) return std::nullopt;
  }
  return out;
}

std::optional<MathNumber> MathNumber::root(int64_t degree) const {
  const auto function = [degree](Complex x) {
    const double by = 1.0 / static_cast<double>(degree);
    if (x.imag() == 0 && x.real() < 0 && degree % 2 != 0) return Complex(-std::pow(-x.real(), by));
    return degree == 1 ? x : degree == 2 ? std::sqrt(x) : std::pow(x, by);
  };
  std::optional<MathNumber> out = apply(function);
  if (!out || degree_ == 0 || degree_ * degree > kMaxDegree) return out;
  out->degree_ = degree_ * degree;
  for (size_t i = 0; i < kPoints; ++i) out->points_[i].residue = points_[i].residue;
  // \sqrt{16} is the whole number 4.
  const double nearest = std::round(out->points_[0].value.real());
  if (symbolic_ || std::abs(nearest) > 9e15 || !close(out->points_[0].value, nearest)) return out;
  MathNumber number = whole(static_cast<int64_t>(nearest));
  if (number.residue_to(0, out->degree_) != out->points_[0].residue) return out;
  number.decimal_ = decimal_;
  return number;
}

// The error comes of the function at both ends of the doubt, and needs no derivative, whatever the
// function.
std::optional<MathNumber> MathNumber::apply(const std::function<Complex(Complex)>& function) const {
  MathNumber out = *this;
  for (Point& point : out.points_) {
    const Complex value = function(point.value);
    const double above = std::abs(function(point.value + point.error) - value),
                 below = std::abs(function(point.value - point.error) - value);
    point = {.residue = 0,
             .value = value,
             .error = std::max(above, below) + kFunctionError * std::abs(value)};
  }
  out.degree_ = 0;
  out.places_.reset();
  if (!out.is_finite()) return std::nullopt;
  return out;
}

std::optional<int64_t> MathNumber::as_whole() const {
  const Complex value = points_[0].value;
  if (!is_exact() || symbolic_ || !is_whole(value) || std::abs(value) > 9e15) return std::nullopt;
  const auto whole = static_cast<int64_t>(value.real());
  if (residue_of(whole) != points_[0].residue) return std::nullopt;
  return whole;
}

// Whether the two are equal, as far as doubles can tell.
bool MathNumber::near(const Point& a, const Point& b) {
  const auto is_zero = [](const Point& point) {
    return std::abs(point.value) <= std::min(kErrorMargin * point.error, kZeroBound);
  };
  if (is_zero(a) && is_zero(b)) return true;
  const double doubt = kErrorMargin * (a.error + b.error);
  return close(a.value, b.value) && std::abs(a.value - b.value) <= doubt &&
         doubt <= kMostDoubt * std::abs(a.value);
}

// Whether `rounded`, which has so many decimal places, is `value` rounded or cut off.
bool MathNumber::shows(const Point& rounded, const Point& value, int64_t places) {
  const double unit = std::pow(10.0, -static_cast<double>(places));
  const double doubt = kErrorMargin * (rounded.error + value.error);
  // Doubles do not reach the last digits of 100000000000000000000.5.
  if (doubt > std::max(unit / 2, kRounding)) return false;
  const bool cut = std::abs(rounded.value) < std::abs(value.value);
  const double most = cut ? unit * 0.9999 : unit / 2;
  return std::abs(rounded.value - value.value) <= most + doubt;
}

// One side is written as a decimal and the other one is what it stands for.
bool MathNumber::within_decimal(const MathNumber& gold, const MathNumber& given, size_t point) {
  const Point &a = gold.points_[point], &b = given.points_[point];
  const double size = std::abs(a.value), difference = std::abs(a.value - b.value);
  const auto of_gold = gold.decimal_ ? gold.places_ : std::nullopt,
             of_given = given.decimal_ ? given.places_ : std::nullopt;
  if (of_gold && of_gold == of_given) return false;
  const auto places = of_gold && of_given ? std::min(of_gold, of_given)
                      : of_gold           ? of_gold
                                          : of_given;
  // 0.333333 x and x/3 are of some size like 1, and show no digits of their value.
  const bool relative = places || gold.degree_ != 1 || given.degree_ != 1;
  const double bound = std::min(1e-6 * (relative ? std::max(1.0, size) : 1.0), 1e-4 * size);
  if (bound == 0 || difference > bound * (1 + kRounding)) return false;
  if (!places) return true;
  return places == of_gold ? shows(a, b, *places) : shows(b, a, *places);
}

bool same(const MathNumber& gold, const MathNumber& given) {
  const int64_t degree = common_degree(gold.degree_, given.degree_);
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &a = gold.points_[i], &b = given.points_[i];
    const bool measured = finite(a.value) && finite(b.value);
    // Two that are beyond doubles are told apart by their residues alone.
    const bool beyond = !finite(a.value) && !finite(b.value);
    if (degree > 0) {
      const bool equal = gold.residue_to(i, degree) == given.residue_to(i, degree);
      const bool zero = std::max(std::abs(a.value), std::abs(b.value)) < kZeroBound;
      if (equal && (beyond || (measured && (zero || close(a.value, b.value))))) continue;
    } else if (measured && MathNumber::near(a, b)) {
      continue;
    }
    if (!measured || !(gold.decimal_ || given.decimal_)) return false;
    if (!MathNumber::within_decimal(gold, given, i)) return false;
  }
  return true;
}

bool proportional(const MathNumber& a, const MathNumber& b) {
  const bool exact = a.is_exact() && b.is_exact();
  const auto is_zero = [exact](const MathNumber::Point& point) {
    return exact ? point.residue == 0 : std::abs(point.value) <= kErrorMargin * point.error;
  };
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &x = a.points_[i], &y = b.points_[i];
    if (!finite(x.value) || !finite(y.value) || is_zero(x) || is_zero(y)) return false;
    const MathNumber::Point &first = a.points_[0], &other = b.points_[0];
    if (exact && times(x.residue, other.residue) != times(y.residue, first.residue)) return false;
    if (!close(x.value / y.value, first.value / other.value)) return false;
  }
  return true;
}

bool is_about(const MathNumber& a, const MathNumber& b) {
  if (a.symbolic_ || b.symbolic_) return false;
  const Complex x = a.points_[0].value, y = b.points_[0].value;
  return finite(x) && finite(y) && std::abs(x - y) <= 0.05 * std::abs(x);
}

bool is_rounding(const MathNumber& value, const MathNumber& rounded) {
  return rounded.places_ && is_about(value, rounded) &&
         MathNumber::shows(rounded.points_[0], value.points_[0], *rounded.places_);
}

}  // namespace tailrace
