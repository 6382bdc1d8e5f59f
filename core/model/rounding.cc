#include "core/model/rounding.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "kernels/base/dtype.h"
#include "kernels/base/isa.h"

namespace tailrace {
namespace {

constexpr size_t kRoundedPiece = 32 * 1024;

// Runs of a fixed length: so the compiler makes vectors of them, as wide as those of the function.
[[gnu::always_inline]] inline void round_runs(std::span<const float> from, Bf16* to) {
  constexpr size_t kRun = 64;
  size_t i = 0;
  for (; i + kRun <= from.size(); i += kRun)
    for (size_t j = 0; j < kRun; ++j) to[i + j] = to_bf16(from[i + j]);
  for (; i < from.size(); ++i) to[i] = to_bf16(from[i]);
}

void round_portably(std::span<const float> from, Bf16* to) { round_runs(from, to); }

}  // namespace

// In the namespace of its instruction set, as all that not every machine has.
namespace avx512 {
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl")))
#endif
static void
round_wide(std::span<const float> from, Bf16* to) {
  round_runs(from, to);
}
}  // namespace avx512

void rounded_to_bf16(std::span<const float> values,
                     const std::function<void(std::span<const std::byte>)>& to) {
  // A piece at a time: a model's second form needs no memory of its own.
  const size_t size = std::min(kRoundedPiece, values.size());
  const auto piece = std::make_unique_for_overwrite<Bf16[]>(size);
  const auto round = isa() == Isa::kAvx512 ? avx512::round_wide : round_portably;
  for (size_t begin = 0; begin < values.size(); begin += size) {
    const auto some = values.subspan(begin, std::min(size, values.size() - begin));
    round(some, piece.get());
    to(std::as_bytes(std::span<const Bf16>(piece.get(), some.size())));
  }
}

}  // namespace tailrace
