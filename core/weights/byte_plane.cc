#include "core/weights/byte_plane.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include <zstd.h>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

// Eight values are a word of 64 bits, a byte each.
constexpr uint64_t kOnes = 0x0101010101010101;

// The low `bits` bits of every byte of `word`, side by side, the first value lowest.
template <int kBits>
constexpr uint64_t gather_digits(uint64_t word) {
  word = (word | word >> (8 - kBits)) & 0x0001000100010001 * ((1 << 2 * kBits) - 1);
  word = (word | word >> (16 - 2 * kBits)) &
         (uint64_t{1} << 32 | 1) * ((uint64_t{1} << 4 * kBits) - 1);
  return word | word >> (32 - 4 * kBits);
}

// Eight digits.
template <int kBits>
using DigitsOf =
    std::conditional_t<kBits == 4, uint32_t, std::conditional_t<kBits == 2, uint16_t, uint8_t>>;

// The way back.
template <int kBits>
constexpr uint64_t spread_digits(uint64_t word) {
  word = (word | word << (32 - 4 * kBits)) &
         (uint64_t{1} << 32 | 1) * ((uint64_t{1} << 4 * kBits) - 1);
  word = (word | word << (16 - 2 * kBits)) & 0x0001000100010001 * ((1 << 2 * kBits) - 1);
  return (word | word << (8 - kBits)) & kOnes * ((1 << kBits) - 1);
}

int64_t digit_bytes(int64_t values, int bits) { return (values + 7) / 8 * bits; }

// Takes what is beyond a digit off `word`, whose bytes of `large` are marked by their highest bit.
template <int kBits>
[[gnu::noinline]] uint64_t take_excess(uint64_t large, uint64_t word,
                                       std::vector<uint8_t>& excess) {
  constexpr uint8_t kLimit = (1 << kBits) - 1;
  for (; large != 0; large &= large - 1) {
    const int shift = std::countr_zero(large) - 7;
    excess.push_back(static_cast<uint8_t>((word >> shift & 0xFF) - kLimit));
    word = (word & ~(uint64_t{0xFF} << shift)) | uint64_t{kLimit} << shift;
  }
  return word;
}

// `digits` has room for them; values behind the last are 0.
template <int kBits>
void pack_digits(std::span<const uint8_t> plane, uint8_t* digits, std::vector<uint8_t>& excess) {
  constexpr uint8_t kLimit = (1 << kBits) - 1;
  for (size_t at = 0; at < plane.size(); at += 8, digits += kBits) {
    uint64_t word = 0;
    if (plane.size() - at >= 8) [[likely]]
      std::memcpy(&word, plane.data() + at, 8);
    else
      std::memcpy(&word, plane.data() + at, plane.size() - at);
    // The highest bit of a byte is set where the byte is kLimit or more: the addition carries into
    // it for values below 128 and never into the next byte, and larger ones have it already.
    const uint64_t large = (((word & ~(kOnes << 7)) + kOnes * (0x80 - kLimit)) | word) & kOnes << 7;
    if (large != 0) word = take_excess<kBits>(large, word, excess);
    const auto packed = static_cast<DigitsOf<kBits>>(gather_digits<kBits>(word));
    std::memcpy(digits, &packed, kBits);
  }
}

// The front of the excesses, where `large` has a bit above each digit that asks for one. False: too
// few of them, or a value that would be no byte.
template <int kBits>
[[gnu::noinline]] bool add_excess(uint64_t large, uint64_t& word,
                                  std::span<const uint8_t>& excess) {
  constexpr uint8_t kLimit = (1 << kBits) - 1;
  for (; large != 0; large &= large - 1) {
    if (excess.empty() || excess[0] > 0xFF - kLimit) return false;
    word += uint64_t{excess[0]} << (std::countr_zero(large) - kBits);
    excess = excess.subspan(1);
  }
  return true;
}

// False: not as many excesses as digits that ask for one, or a digit behind the last value.
template <int kBits>
bool unpack_digits(const uint8_t* digits, std::span<const uint8_t> excess, std::span<uint8_t> out) {
  for (size_t at = 0; at < out.size(); at += 8, digits += kBits) {
    DigitsOf<kBits> packed;  // not a part of a word, which the processor would wait for
    std::memcpy(&packed, digits, kBits);
    uint64_t word = spread_digits<kBits>(packed);
    // A digit of all ones is the only one that one more carries out of.
    const uint64_t large = (word + kOnes) & kOnes << kBits;
    if (large != 0) [[unlikely]]
      if (!add_excess<kBits>(large, word, excess)) return false;
    if (out.size() - at >= 8) [[likely]] {
      std::memcpy(out.data() + at, &word, 8);
      continue;
    }
    const size_t rest = out.size() - at;
    if (word >> (8 * rest) != 0) return false;
    std::memcpy(out.data() + at, &word, rest);
  }
  return excess.empty();
}

template <class F>
auto with_digit(int bits, const F& f) {
  if (bits == 4) return f.template operator()<4>();
  if (bits == 2) return f.template operator()<2>();
  return f.template operator()<1>();
}

// The digit that leaves the fewest bytes to code, by a sample of the values.
int choose_digit(std::span<const uint8_t> plane) {
  constexpr size_t kSample = 2048;
  std::array<uint32_t, 16> counts{};
  const size_t step = plane.size() / kSample + 1;
  size_t seen = 0;
  for (size_t at = 0; at < plane.size(); at += step, ++seen)
    ++counts[std::min<size_t>(plane[at], 15)];
  int best = 8;
  double fewest = 0.8;  // less is not worth the work
  for (const int bits : {4, 2, 1}) {
    size_t below = 0;
    for (int value = 0; value < (1 << bits) - 1; ++value)
      below += counts[static_cast<size_t>(value)];
    // An excess is counted as six bytes, far more than it takes: each of them leaves the fast path.
    const double bytes = bits / 8.0 + 6 * static_cast<double>(seen - below) /
                                          static_cast<double>(std::max<size_t>(1, seen));
    if (bytes >= fewest) continue;
    fewest = bytes;
    best = bits;
  }
  return best;
}

}  // namespace

// ---- write

struct PlaneWriter::Zstd {
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context{ZSTD_createCCtx(), ZSTD_freeCCtx};
};

PlaneWriter::PlaneWriter() : zstd_(std::make_unique<Zstd>()) {
  TR_CHECK(zstd_->context != nullptr);
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    TR_CHECK(!ZSTD_isError(ZSTD_CCtx_setParameter(zstd_->context.get(), parameter, value)));
  };
  set(ZSTD_c_compressionLevel, 1);
  set(ZSTD_c_strategy, ZSTD_fast);
  set(ZSTD_c_minMatch, 7);
  set(ZSTD_c_hashLog, 6);
  set(ZSTD_c_windowLog, 17);
  set(ZSTD_c_contentSizeFlag, 0);  // it stands before the frame
}
PlaneWriter::~PlaneWriter() = default;

void PlaneWriter::put_number(int64_t number) {
  auto rest = static_cast<uint64_t>(number);
  for (; rest >= 0x80; rest >>= 7) put_byte(static_cast<uint8_t>(rest | 0x80));
  put_byte(static_cast<uint8_t>(rest));
}

void PlaneWriter::put_stored(std::span<const uint8_t> bytes) {
  packed_.resize(std::max(packed_.size(), ZSTD_compressBound(bytes.size())));
  const size_t packed = ZSTD_compress2(zstd_->context.get(), packed_.data(), packed_.size(),
                                       bytes.data(), bytes.size());
  TR_CHECK(!ZSTD_isError(packed), "zstd: {}", ZSTD_getErrorName(packed));
  // A packing that saves next to nothing is not worth the time to decode it.
  if (packed + bytes.size() / 64 < bytes.size()) bytes = std::span(packed_).first(packed);
  put_number(std::ssize(bytes));
  const auto stored = std::as_bytes(bytes);
  out_->insert(out_->end(), stored.begin(), stored.end());
}

void PlaneWriter::put_plane(std::span<const uint8_t> plane) {
  put_number(std::ssize(plane));
  const int bits = choose_digit(plane);
  put_byte(static_cast<uint8_t>(bits));
  if (bits == 8) return put_stored(plane);
  excess_.clear();
  digits_.resize(static_cast<size_t>(digit_bytes(std::ssize(plane), bits)));
  with_digit(bits, [&]<int kBits>() { pack_digits<kBits>(plane, digits_.data(), excess_); });
  put_stored(digits_);
  put_number(std::ssize(excess_));
  put_stored(excess_);
}

// ---- read

struct PlaneReader::Zstd {
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context{ZSTD_createDCtx(), ZSTD_freeDCtx};
};

PlaneReader::PlaneReader() : zstd_(std::make_unique<Zstd>()) {
  TR_CHECK(zstd_->context != nullptr);
}
PlaneReader::~PlaneReader() = default;

std::optional<uint8_t> PlaneReader::take_byte() {
  if (rest_.empty()) return {};
  const auto byte = static_cast<uint8_t>(rest_[0]);
  rest_ = rest_.subspan(1);
  return byte;
}

std::optional<int64_t> PlaneReader::take_number(int64_t max) {
  uint64_t value = 0;
  // Nine bytes hold 63 bits, as many as a number that is not negative has. A longer one is damage.
  for (int shift = 0; shift < 63; shift += 7) {
    const auto byte = take_byte();
    if (!byte) return {};
    value |= static_cast<uint64_t>(*byte & 0x7F) << shift;
    if (*byte < 0x80)
      return value <= static_cast<uint64_t>(max) ? std::optional(static_cast<int64_t>(value))
                                                 : std::nullopt;
  }
  return {};
}

bool PlaneReader::take_stored(std::span<uint8_t> out) {
  // Never more than the bytes that are wanted: put_stored() leaves a packing that does not shrink.
  const auto stored = take_number(std::min(std::ssize(out), std::ssize(rest_)));
  if (!stored) return false;
  const auto bytes = rest_.first(static_cast<size_t>(*stored));
  rest_ = rest_.subspan(bytes.size());
  if (bytes.size() == out.size()) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return true;
  }
  const size_t got =
      ZSTD_decompressDCtx(zstd_->context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  return !ZSTD_isError(got) && got == out.size();
}

std::optional<size_t> PlaneReader::take_plane(std::span<uint8_t> out) {
  const auto size = take_number(std::ssize(out));
  const auto bits = take_byte();
  if (!size || !bits) return {};
  const auto values = out.first(static_cast<size_t>(*size));
  if (*bits == 8) return take_stored(values) ? std::optional(values.size()) : std::nullopt;
  if (*bits != 4 && *bits != 2 && *bits != 1) return {};
  digits_.resize(static_cast<size_t>(digit_bytes(*size, *bits)));
  if (!take_stored(digits_)) return {};
  const auto excesses = take_number(*size);
  if (!excesses) return {};
  excess_.resize(static_cast<size_t>(*excesses));
  if (!take_stored(excess_)) return {};
  const bool fits = with_digit(
      *bits, [&]<int kBits>() { return unpack_digits<kBits>(digits_.data(), excess_, values); });
  return fits ? std::optional(values.size()) : std::nullopt;
}

}  // namespace tailrace
