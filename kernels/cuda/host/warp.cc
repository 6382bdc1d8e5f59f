// Exchanges between the lanes of a warp, and copies of cp.async.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "kernels/cuda/host/machine.h"

namespace tailrace::cuda::emulation {
namespace {

size_t own_index() { return static_cast<unsigned>(g_machine.current) % kLanes; }

// The lane that a shuffle reads.
int source_of(ShuffleFrom rule, int argument, int width) {
  const int own = g_machine.current % kLanes, begin = own & ~(width - 1), end = begin + width;
  switch (rule) {
    case ShuffleFrom::kLane:
      return begin | (argument & (width - 1));
    case ShuffleFrom::kXor:
      return (own ^ argument) < end ? own ^ argument : own;
    case ShuffleFrom::kDown:
      return own + argument < end ? own + argument : own;
    case ShuffleFrom::kUp:
      return own - argument >= begin ? own - argument : own;
  }
  return own;
}

// Eight rows of 16 bytes should lie in eight different groups of banks.
void count_conflicts(const std::array<uint64_t, kLanes>& rows, int count) {
  for (int i = 0; i < count; ++i) {
    unsigned seen = 0;
    for (int j = 0; j < 8; ++j) {
      const unsigned bit = 1u << (rows[static_cast<size_t>(8 * i + j)] / 16 % 8);
      g_machine.stats.bank_conflicts += (seen & bit) != 0;
      seen |= bit;
    }
  }
}

// Messages are made out of line: what is hot stays small.
[[gnu::cold, gnu::noinline, noreturn]] void stop_without_warp(const char* what, const void* place) {
  stop(place, fmt::format("{} in a warp without all of its lanes", what));
}

[[gnu::cold, gnu::noinline]] uint64_t nothing_from(int lane, unsigned mask, const void* place) {
  error(place, fmt::format("shuffle from lane {}, which is not there (mask {:08x})", lane, mask));
  return ~uint64_t{0};
}

#if defined(__x86_64__)
#define TR_VECTOR_CLONES [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define TR_VECTOR_CLONES
#endif

// Products of bfloat16 are exact in double, so that machines with and without a fused multiply-add
// have the same sums.
TR_VECTOR_CLONES void multiply_all(Product& p) {
  typedef float Floats __attribute__((vector_size(32)));
  typedef double Row __attribute__((vector_size(64)));
  Row b[16];
  double a[16][16];
  for (size_t i = 0; i < 16; ++i) {
    Floats row, left, right;
    std::memcpy(&row, p.b[i].data(), sizeof(row));
    std::memcpy(&left, p.a[i].data(), sizeof(left));
    std::memcpy(&right, p.a[i].data() + 8, sizeof(right));
    b[i] = __builtin_convertvector(row, Row);
    const Row wide[2] = {__builtin_convertvector(left, Row), __builtin_convertvector(right, Row)};
    std::memcpy(a[i], wide, sizeof(wide));
  }
  for (size_t i = 0; i < 16; i += 4) {
    Row sums[4] = {};
    for (size_t k = 0; k < 16; ++k)
      for (size_t j = 0; j < 4; ++j) sums[j] += a[i + j][k] * b[k];
    std::memcpy(p.d[i].data(), sums, sizeof(sums));
  }
}

}  // namespace

void sync_warp(unsigned mask) {
  const OutOfKernel outside;
  arrive(own_warp(), point_of(mask), Exchange::kSync, __builtin_return_address(0));
}

uint64_t shuffle(unsigned mask, uint64_t own, ShuffleFrom rule, int argument, int width) {
  const OutOfKernel outside;
  Point& point = point_of(mask);
  const auto side = static_cast<size_t>(point.side);
  point.values[side][own_index()] = own;
  arrive(own_warp(), point, Exchange::kShuffle, __builtin_return_address(0));
  const int from = source_of(rule, argument, width);
  if ((point.came[side] >> from & 1) == 0)
    return nothing_from(from, mask, __builtin_return_address(0));
  return point.values[side][static_cast<size_t>(from)];
}

unsigned ballot(unsigned mask, bool own) {
  const OutOfKernel outside;
  Point& point = point_of(mask);
  const auto side = static_cast<size_t>(point.side);
  point.values[side][own_index()] = own;
  arrive(own_warp(), point, Exchange::kVote, __builtin_return_address(0));
  unsigned result = 0;
  for (size_t i = 0; i < kLanes; ++i)
    if (point.came[side] >> i & 1) result |= static_cast<unsigned>(point.values[side][i]) << i;
  return result;
}

void load_matrices(uint32_t* out, int count, bool transposed, const void* row) {
  const OutOfKernel outside;
  const void* place = __builtin_return_address(0);
  Warp& warp = own_warp();
  Point& point = warp.all;
  if (warp.alive != ~0u) stop_without_warp("ldmatrix", place);
  const auto lane = own_index();
  auto& rows = point.values[static_cast<size_t>(point.side)];
  rows[lane] = reinterpret_cast<uintptr_t>(row);
  const bool has_row = lane < 8 * static_cast<size_t>(count);
  if (has_row && rows[lane] % 16 != 0) stop(place, "a row of ldmatrix is not aligned to 16 bytes");
  if (arrive(warp, point, Exchange::kMatrix, place)) count_conflicts(rows, count);
  const auto element = [&](size_t matrix, size_t r, size_t c) {
    return reinterpret_cast<const std::byte*>(rows[8 * matrix + r]) + 2 * c;
  };
  const size_t outer = lane / 4, inner = 2 * (lane % 4);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const std::byte* low_from = transposed ? element(i, inner, outer) : element(i, outer, inner);
    const std::byte* high_from = transposed ? element(i, inner + 1, outer) : low_from + 2;
    if (g_checks) {
      check(low_from, transposed ? 2 : 4, Access::kRead, place);
      if (transposed) check(high_from, 2, Access::kRead, place);
    }
    uint16_t pair[2];
    std::memcpy(&pair[0], low_from, 2);
    std::memcpy(&pair[1], high_from, 2);
    out[i] = pair[0] | uint32_t{pair[1]} << 16;
  }
}

// Lane l has the elements k = 2 (l % 4) + {0, 1, 8, 9} of the rows l / 4 and l / 4 + 8 of a, and of
// column l / 4 of b: they stay in that order.
void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const OutOfKernel outside;
  const void* place = __builtin_return_address(0);
  Warp& warp = own_warp();
  if (warp.alive != ~0u) stop_without_warp("mma", place);
  Product& p = warp.product;
  const auto lane = own_index();
  const size_t outer = lane / 4, inner = lane % 4;
  // A bfloat16 is the upper half of a float.
  typedef uint32_t Pairs __attribute__((vector_size(16)));
  Pairs pairs;
  std::memcpy(&pairs, a, sizeof(pairs));
  const Pairs low = pairs << 16, high = pairs & 0xFFFF0000u;
  const Pairs row = __builtin_shufflevector(low, high, 0, 4, 2, 6),
              row_8 = __builtin_shufflevector(low, high, 1, 5, 3, 7);
  std::memcpy(&p.a[outer][4 * inner], &row, sizeof(row));
  std::memcpy(&p.a[outer + 8][4 * inner], &row_8, sizeof(row_8));
  p.b[4 * inner][outer] = __builtin_bit_cast(float, b[0] << 16);
  p.b[4 * inner + 1][outer] = __builtin_bit_cast(float, b[0] & 0xFFFF0000u);
  p.b[4 * inner + 2][outer] = __builtin_bit_cast(float, b[1] << 16);
  p.b[4 * inner + 3][outer] = __builtin_bit_cast(float, b[1] & 0xFFFF0000u);
  if (arrive(warp, warp.all, Exchange::kProduct, place)) multiply_all(p);
  const double *sums = &p.d[outer][2 * inner], *sums_8 = &p.d[outer + 8][2 * inner];
  d[0] = static_cast<float>(d[0] + sums[0]);
  d[1] = static_cast<float>(d[1] + sums[1]);
  d[2] = static_cast<float>(d[2] + sums_8[0]);
  d[3] = static_cast<float>(d[3] + sums_8[1]);
}

void copy_async16(void* to, const void* from, int from_bytes) {
  const OutOfKernel outside;
  const void* place = __builtin_return_address(0);
  Lane& lane = own_lane();
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    stop(place, "copy_async16 of an address that is not aligned to 16 bytes");
  if (from_bytes < 0 || from_bytes > 16)
    stop(place, fmt::format("copy_async16 of {} bytes", from_bytes));
  if (g_checks) {
    if (from_bytes > 0) check(from, static_cast<size_t>(from_bytes), Access::kRead, place);
    check(to, 16, Access::kCopyBegins, place);
  }
  std::memset(to, 0xFF, 16);
  g_machine.stats.copied_bytes += from_bytes;
  lane.copies.push_back({to, from, from_bytes, lane.open_group});
}

void commit_copies() { ++own_lane().open_group; }

void await_copies(int pending_groups) {
  const OutOfKernel outside;
  Lane& lane = own_lane();
  auto next = lane.copies.begin();
  for (; next != lane.copies.end() && next->group < lane.open_group - pending_groups; ++next) {
    const auto bytes = static_cast<size_t>(next->from_bytes);
    if (g_checks) check(next->to, 16, Access::kCopyEnds, __builtin_return_address(0));
    std::memcpy(next->to, next->from, bytes);
    std::memset(static_cast<std::byte*>(next->to) + bytes, 0, 16 - bytes);
  }
  lane.copies.erase(lane.copies.begin(), next);
}

void touch_atomically(void* address, size_t bytes) {
  const OutOfKernel outside;
  if (g_checks) check(address, bytes, Access::kAtomic, __builtin_return_address(0));
}

}  // namespace tailrace::cuda::emulation
