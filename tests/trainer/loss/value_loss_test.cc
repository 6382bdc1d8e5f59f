#include "trainer/loss/value_loss.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace {
namespace {

struct Valued {
  double loss = 0;
  std::vector<double> gradient;
};

Valued value_of(const std::vector<float>& value, const std::vector<float>& old_value,
                const std::vector<float>& returns, double clip, double weight,
                std::vector<uint8_t> mask = {}) {
  if (mask.empty()) mask.assign(value.size(), 1);
  Valued out{.gradient = std::vector<double>(value.size(), 9)};  // one that is passed over shows
  out.loss = value_loss({value, old_value, returns, mask}, clip, weight, out.gradient);
  return out;
}

// Golden V-1 of the literature: c = 0.2.
TEST(ValueLoss, TheClippedTermHoldsWhereItIsTheLarger) {
  const auto check = [](float v, float returns, double loss, double gradient) {
    const Valued out = value_of({v}, {.5f}, {returns}, .2, 1);
    EXPECT_NEAR(out.loss, loss, 1e-7);
    EXPECT_NEAR(out.gradient[0], gradient, 1e-7);
  };
  check(.8f, 1, .045, 0);
  check(.8f, 0, .32, .8);
  check(.6f, 1, .08, -.4);
}

TEST(ValueLoss, WithoutAClipItIsHalfTheSquaredError) {
  const Valued out = value_of({.8f, 3}, {.5f, 0}, {1, 1}, 0, .5);
  EXPECT_NEAR(out.loss, .5 * .5 * (.04 + 4), 1e-7);
  EXPECT_NEAR(out.gradient[0], -.1, 1e-7);
  EXPECT_NEAR(out.gradient[1], 1, 1e-7);
}

TEST(ValueLoss, AMaskedTokenChangesNothing) {
  const Valued all = value_of({.8f}, {.5f}, {0}, .2, .25);
  const Valued some = value_of({.8f, 1e30f}, {.5f, -1e30f}, {0, 5}, .2, .25, {1, 0});
  EXPECT_EQ(some.loss, all.loss);
  EXPECT_EQ(some.gradient, (std::vector<double>{all.gradient[0], 0}));
}

TEST(ValueLoss, ItsPartsAddUp) {
  const Valued whole = value_of({.1f, .9f, -2}, {0, 0, 0}, {1, 0, .5f}, .5, 1.0 / 3);
  const Valued first = value_of({.1f}, {0}, {1}, .5, 1.0 / 3);
  const Valued rest = value_of({.9f, -2}, {0, 0}, {0, .5f}, .5, 1.0 / 3);
  EXPECT_NEAR(whole.loss, first.loss + rest.loss, 1e-12);
  EXPECT_EQ(whole.gradient[2], rest.gradient[1]);
}

TEST(ValueLoss, TheGradientIsThatOfFiniteDifferences) {
  Rng rng(4);
  std::vector<float> value, old_value, returns;
  for (int i = 0; i < 200; ++i) {
    for (auto* column : {&value, &old_value, &returns})
      column->push_back(static_cast<float>(4 * rng.uniform() - 2));
  }
  constexpr double kClip = .4, kWeight = 1.0 / 200;
  const Valued out = value_of(value, old_value, returns, kClip, kWeight);
  int held = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    constexpr float kStep = 1.0f / 1024;
    auto up = value, down = value;
    up[i] += kStep, down[i] -= kStep;
    const Valued above = value_of(up, old_value, returns, kClip, kWeight);
    const Valued below = value_of(down, old_value, returns, kClip, kWeight);
    // At an edge of the clip the two sides have other slopes.
    if ((above.gradient[i] == 0) != (below.gradient[i] == 0)) continue;
    EXPECT_NEAR(out.gradient[i], (above.loss - below.loss) / (double{up[i]} - down[i]), 1e-9) << i;
    held += out.gradient[i] == 0;
  }
  EXPECT_GT(held, 10) << "the clip was never tried";
}

}  // namespace
}  // namespace tailrace
