#include <cmath>
#include <cstddef>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

void rope(Matrix x, int num_heads, std::span<const int32_t> positions,
          std::span<const double> inv_freq, bool inverse) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int head = 0; head < num_heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        // From the frequencies, not from rope_table(): the oracle judges the table too.
        double angle = positions[static_cast<size_t>(t)] * inv_freq[static_cast<size_t>(i)];
        if (inverse) angle = -angle;
        float* first = x.row(t) + head * 2 * half + i;
        const double a = first[0], b = first[half];
        first[0] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        first[half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
}

}  // namespace tailrace::ref
