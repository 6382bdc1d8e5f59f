#include "kernels/ops/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace tailrace::cpu::inline TR_ISA {

void rope_table(const Stream& stream, const RopeTable& args) {
  const auto [inv_freq, scale, table] = args;
  const auto half = static_cast<int64_t>(inv_freq.size());
  TR_CHECK(table.cols == 2 * half, "table [{}, {}] for {} frequencies", table.rows, table.cols,
           half);
  parallel_for(stream, table.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        // In double: at position 100,000 a float angle is wrong by up to 0.004 already before the
        // cosine.
        double angle = static_cast<double>(p) * inv_freq[static_cast<size_t>(i)];
        table.row(p)[i] = static_cast<float>(scale * std::cos(angle));
        table.row(p)[half + i] = static_cast<float>(scale * std::sin(angle));
      }
    }
  });
}

void rope(const Stream& stream, const Rope& args) {
  const Matrix x = args.x.host();
  const ConstMatrix table = args.table.host();
  const std::span<const int32_t> positions = args.positions;
  const int num_heads = args.num_heads;
  const bool inverse = args.inverse;
  const int64_t half = table.cols / 2;
  TR_CHECK(x.cols == num_heads * table.cols && static_cast<int64_t>(positions.size()) == x.rows,
           "x [{}, {}], {} heads of {}, {} positions", x.rows, x.cols, num_heads, table.cols,
           positions.size());
  const int64_t grain = std::max<int64_t>(1, 32 * 1024 / std::max<int64_t>(x.cols, 1));
  parallel_for(stream, x.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t position = positions[static_cast<size_t>(t)];
      TR_CHECK(position >= 0 && position < table.rows, "position {} of {}", position, table.rows);
      const float* angles = table.row(position);
      for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t left = half - i;
        const Vec16 cosine = simd::load(angles + i, left);
        Vec16 sine = simd::load(angles + half + i, left);
        // The gradient of a rotation is its transpose.
        if (inverse) sine = simd::sub(simd::zero(), sine);
        for (int head = 0; head < num_heads; ++head) {
          float* first = x.row(t) + head * table.cols + i;
          float* second = first + half;
          const Vec16 a = simd::load(first, left), b = simd::load(second, left);
          simd::store(first, simd::sub(simd::mul(a, cosine), simd::mul(b, sine)), left);
          simd::store(second, simd::add(simd::mul(b, cosine), simd::mul(a, sine)), left);
        }
      }
    }
  });
}

}  // namespace tailrace::cpu::inline TR_ISA
