#include "reward/verifiers/math_number.h"

#include <algorithm>
#include <cmath>
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

// What a chain of some dozen operations in doubles leaves, with a wide margin.
constexpr double kRounding = 1e-9;
bool near(Complex a, Complex b) {
  const double size = std::max(std::abs(a), std::abs(b));
  // sin(pi) in doubles is 1e-16 and not 0.
  return std::abs(a - b) <= kRounding * size || size < 1e-12;
}

bool is_whole(Complex value) {
  return value.imag() == 0 && value.real() == std::floor(value.real());
}

// No product of complex parts: (inf + 0i) * (2 + 0i) would be no number.
Complex product(Complex a, Complex b) {
  return a.imag() == 0 && b.imag() == 0 ? Complex(a.real() * b.real()) : a * b;
}

}  // namespace

MathNumber MathNumber::whole(int64_t value) {
  MathNumber number;
  number.points_.fill({.residue = residue_of(value), .value = static_cast<double>(value)});
  return number;
}

MathNumber MathNumber::constant(Complex value) {
  MathNumber number;
  number.points_.fill({.residue = 0, .value = value});
  number.exact_ = false;
  return number;
}

MathNumber MathNumber::symbol(std::string_view name) {
  MathNumber number;
  uint64_t key = 0x6c65'7474'6572;  // "letter"
  for (const char c : name) key = mix({key, static_cast<unsigned char>(c)});
  for (size_t i = 0; i < kPoints; ++i) {
    // From 1 to 3, so that powers stay small and roots real; in 1 / 2^20, which doubles hold.
    const auto steps = static_cast<int64_t>((1 << 20) + mix({key, i}) % (1 << 21));
    number.points_[i] = {.residue = times(residue_of(steps), inverse(1 << 20)),
                         .value = static_cast<double>(steps) / (1 << 20)};
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
    point.value = point.value * 10.0 + static_cast<double>(c - '0');
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
  // By division: 5 / 10 is 0.5 exactly, and 5 * 0.1 need not be.
  const double size = std::pow(10.0, static_cast<double>(std::abs(shift)));
  point.value = shift < 0 ? point.value / size : point.value.real() == 0 ? 0.0 : point.value * size;
  MathNumber number;
  number.points_.fill(point);
  number.decimal_ = decimal;
  return number;
}

bool MathNumber::is_finite() const {
  return std::ranges::all_of(points_, [](const Point& point) { return finite(point.value); });
}

MathNumber MathNumber::operator-() const {
  MathNumber number = *this;
  for (Point& point : number.points_) {
    point.residue = point.residue == 0 ? 0 : kPrime - point.residue;
    point.value = -point.value;
  }
  return number;
}

MathNumber operator+(const MathNumber& a, const MathNumber& b) {
  MathNumber sum = a;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    sum.points_[i].residue = (a.points_[i].residue + b.points_[i].residue) % kPrime;
    sum.points_[i].value += b.points_[i].value;
  }
  sum.exact_ &= b.exact_;
  sum.decimal_ |= b.decimal_;
  sum.symbolic_ |= b.symbolic_;
  return sum;
}

MathNumber operator*(const MathNumber& a, const MathNumber& b) {
  MathNumber out = a;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    out.points_[i].residue = times(a.points_[i].residue, b.points_[i].residue);
    out.points_[i].value = product(a.points_[i].value, b.points_[i].value);
  }
  out.exact_ &= b.exact_;
  out.decimal_ |= b.decimal_;
  out.symbolic_ |= b.symbolic_;
  return out;
}

std::optional<MathNumber> divide(const MathNumber& a, const MathNumber& b) {
  MathNumber under = b;
  for (MathNumber::Point& point : under.points_) {
    if (b.exact_ ? point.residue == 0 : std::abs(point.value) < 1e-12) return std::nullopt;
    point.residue = b.exact_ ? inverse(point.residue) : 0;
  }
  // The quotient of the doubles and not a * (1 / b), which rounds twice.
  MathNumber out = a * under;
  for (size_t i = 0; i < MathNumber::kPoints; ++i)
    out.points_[i].value = a.points_[i].value / b.points_[i].value;
  return out;
}

std::optional<MathNumber> power(const MathNumber& base, const MathNumber& exponent) {
  MathNumber out = base * exponent;  // for its flags
  const std::optional<int64_t> whole = exponent.as_whole();
  if (whole && std::abs(*whole) > kMaxPower) return std::nullopt;
  out.exact_ = base.exact_ && whole;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point& from = base.points_[i];
    MathNumber::Point& to = out.points_[i];
    const bool zero = base.exact_ ? from.residue == 0 : from.value == 0.0;
    if (zero && !(whole && *whole > 0)) return std::nullopt;
    if (out.exact_) {
      to.residue = power_of(from.residue, static_cast<uint64_t>(std::abs(*whole)));
      if (*whole < 0) to.residue = inverse(to.residue);
    }
    const Complex by = exponent.points_[i].value;
    const bool real = from.value.imag() == 0 && by.imag() == 0 && (from.value.real() > 0 || whole);
    to.value = real ? Complex(std::pow(from.value.real(), by.real())) : std::pow(from.value, by);
    if (!out.exact_ && !finite(to.value)) return std::nullopt;
  }
  return out;
}

std::optional<MathNumber> MathNumber::apply(const std::function<Complex(Complex)>& function) const {
  MathNumber out = *this;
  for (Point& point : out.points_) point = {.residue = 0, .value = function(point.value)};
  out.exact_ = false;
  if (!out.is_finite()) return std::nullopt;
  return out;
}

std::optional<int64_t> MathNumber::as_whole() const {
  const Complex value = points_[0].value;
  if (!exact_ || symbolic_ || !is_whole(value) || std::abs(value) > 9e15) return std::nullopt;
  const auto whole = static_cast<int64_t>(value.real());
  if (residue_of(whole) != points_[0].residue) return std::nullopt;
  return whole;
}

bool same(const MathNumber& gold, const MathNumber& given) {
  const bool exact = gold.exact_ && given.exact_;
  const bool decimal = gold.decimal_ || given.decimal_;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const MathNumber::Point &a = gold.points_[i], &b = given.points_[i];
    const bool measured = finite(a.value) && finite(b.value);
    // Two that are beyond doubles are told apart by their residues alone.
    const bool beyond = !finite(a.value) && !finite(b.value);
    if (exact && a.residue == b.residue && (beyond || (measured && near(a.value, b.value))))
      continue;
    if (!measured || (exact && !decimal)) return false;
    if (!exact && near(a.value, b.value)) continue;
    if (!decimal) return false;
    const double size = std::abs(a.value);
    const bool whole = is_whole(a.value) || is_whole(b.value);
    const double bound = std::min(1e-6 * (whole ? 1.0 : std::max(1.0, size)), 1e-4 * size);
    // A margin, since 0.333333 is 1/3 within 3.3e-7 and 1.000001 is on the bound of 1.
    if (std::abs(a.value - b.value) > bound * (1 + kRounding)) return false;
  }
  return true;
}

bool proportional(const MathNumber& a, const MathNumber& b) {
  std::optional<Complex> first;
  for (size_t i = 0; i < MathNumber::kPoints; ++i) {
    const Complex x = a.points_[i].value, y = b.points_[i].value;
    if (!finite(x) || !finite(y) || std::abs(x) < 1e-12 || std::abs(y) < 1e-12) return false;
    if (first && !near(*first, x / y)) return false;
    first = x / y;
  }
  return true;
}

}  // namespace tailrace
