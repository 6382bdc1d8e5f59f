#include "rollout/engine/sampler.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Sampler, ARowTruncatesWhereItsParametersDo) {
  for (const double temperature : {0.0, 0.7}) {
    for (const int64_t top_k :
         {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{99}, int64_t{100}, int64_t{1} << 40}) {
      for (const double top_p : {0.5, 1.0}) {
        for (const double min_p : {0.0, 0.1}) {
          SamplingParams params;
          params.temperature = temperature;
          params.top_k = top_k;
          params.top_p = top_p;
          params.min_p = min_p;
          const SamplingRow row = sampling_row(params, 0.25);
          EXPECT_EQ(truncates(row, 100), truncates(params, 100))
              << temperature << ' ' << top_k << ' ' << top_p << ' ' << min_p;
          EXPECT_EQ(row.greedy, temperature == 0);
          EXPECT_EQ(row.inv_temperature, inverse_temperature(params));
          EXPECT_EQ(row.uniform, 0.25);
        }
      }
    }
  }
}

TEST(Sampler, ANumberBelongsToItsKeyAndPosition) {
  double sum = 0;
  for (int64_t position = 0; position < 1000; ++position) {
    const double uniform = sample_uniform({42}, position);
    EXPECT_TRUE(uniform >= 0 && uniform < 1);
    EXPECT_EQ(uniform, sample_uniform({42}, position));
    EXPECT_NE(uniform, sample_uniform({43}, position));
    EXPECT_NE(uniform, sample_uniform({42}, position + 1));
    sum += uniform;
  }
  // The mean of 1000 has a deviation of 0.29 / sqrt(1000); 4.5 sigma.
  EXPECT_NEAR(sum / 1000, 0.5, 0.042);
  EXPECT_NE(sample_uniform({42}, 1), sample_uniform({42}, (int64_t{1} << 32) + 1));
}

}  // namespace
}  // namespace tailrace
