#include "cli/plan/fit.h"

#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::vector<DecodePoint> points_of(const simulator::DecodeModel& model) {
  std::vector<DecodePoint> points;
  for (const double batch : {1.0, 4.0, 16.0, 64.0})
    for (const double context : {8.0, 200.0})
      points.push_back({batch, batch * context, model.seconds(batch, batch * context)});
  return points;
}

TEST(FitDecode, FindsTheModelThatMadeThePoints) {
  const simulator::DecodeModel model{.step = 2e-4, .sequence = 3e-5, .context = 4e-8};
  const simulator::DecodeModel found = fit_decode(points_of(model));
  EXPECT_NEAR(found.step, model.step, 1e-9);
  EXPECT_NEAR(found.sequence, model.sequence, 1e-10);
  EXPECT_NEAR(found.context, model.context, 1e-12);
}

// Noise can make a least square of a small coefficient negative, and a simulated world would go
// back in time.
TEST(FitDecode, HasNoNegativeCoefficient) {
  std::vector<DecodePoint> points = points_of({.step = 2e-4, .sequence = 3e-5, .context = 0});
  for (DecodePoint& point : points) point.seconds *= 1 - 1e-5 * point.context;
  const simulator::DecodeModel found = fit_decode(points);
  EXPECT_EQ(found.context, 0);
  EXPECT_GT(found.step, 0);
  EXPECT_GT(found.sequence, 0);
  for (const DecodePoint& point : points)
    EXPECT_NEAR(found.seconds(point.batch, point.context) / point.seconds, 1, 0.15);
}

TEST(FitDecode, OnePointIsEnough) {
  const std::vector<DecodePoint> points = {{8, 80, 1e-3}};
  EXPECT_NEAR(fit_decode(points).seconds(8, 80), 1e-3, 1e-12);
}

}  // namespace
}  // namespace tailrace
