#include "rollout/engine/sampler.h"

#include <algorithm>
#include <limits>

#include "core/base/random.h"

namespace tailrace {

double sample_uniform(SampleKey key, int64_t position) {
  auto counter = static_cast<uint64_t>(position);
  // The position is the counter (Salmon et al. 2011): a number can be had at any place without
  // those before it.
  auto words = philox(key.value,
                      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
  return uniform_double(words[0], words[1]);
}

SamplingRow sampling_row(const SamplingParams& params, double uniform) {
  // More than any vocabulary is as good as all of it.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return {.uniform = uniform,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .inv_temperature = inverse_temperature(params),
          .top_k = static_cast<int32_t>(std::clamp<int64_t>(params.top_k, 0, kMost)),
          .greedy = params.temperature <= 0};
}

}  // namespace tailrace
