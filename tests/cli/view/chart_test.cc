#include "cli/view/chart.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(RoundTicks, AreRoundAndInside) {
  EXPECT_EQ(round_ticks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(round_ticks(3, 97, 5), (std::vector<double>{20, 40, 60, 80}));
  EXPECT_EQ(round_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  for (double size : {1e-12, 3e-5, 1.0, 7e11})
    EXPECT_NEAR(static_cast<double>(round_ticks(0, size, 5).size()), 5, 2) << size;
}

TEST(MovingAverage, KeepsAConstantAndFollowsAStep) {
  std::vector<std::pair<double, double>> flat(50, {0, 3.0});
  for (auto [x, y] : moving_average(flat)) EXPECT_NEAR(y, 3.0, 1e-12);
  std::vector<std::pair<double, double>> step;
  for (int i = 0; i < 100; ++i) step.emplace_back(i, i < 50 ? 0.0 : 1.0);
  auto smooth = moving_average(step);
  EXPECT_EQ(smooth[0].second, 0);
  EXPECT_EQ(smooth[99].second, 1);
  EXPECT_NEAR(smooth[49].second + smooth[50].second, 1, 1e-12);
  EXPECT_GT(smooth[49].second, 0.3);
  EXPECT_EQ(smooth[99].first, 99);
}

TEST(DrawChart, PlotsEachPointInsideTheFrame) {
  Chart chart{.title = "a < b",
              .series = {{.name = "x", .points = {{0, 1}, {1, 2}, {2, 1.5}}, .markers = true}}};
  std::string svg = draw_chart(chart);
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_EQ(count(svg, "<circle"), 3);
  EXPECT_EQ(count(svg, "class=\"line"), 1);
  EXPECT_EQ(svg.find("<style>"), std::string::npos);
  chart.standalone = true;
  EXPECT_NE(draw_chart(chart).find("<style>"), std::string::npos);
}

// 0.046875 twice, once with another last bit: ticks between them would never end.
TEST(DrawChart, EndsWhereValuesDifferInTheirLastBits) {
  Chart chart;
  chart.series = {{.name = "a", .points = {{1, 0.04687499999999999}, {2, 0.046874999999999986}}}};
  EXPECT_LT(draw_chart(chart).size(), 20'000u);
}

TEST(DrawChart, LeavesOutWhatIsNotFinite) {
  double nan = std::numeric_limits<double>::quiet_NaN(),
         infinity = std::numeric_limits<double>::infinity();
  std::string svg =
      draw_chart({.series = {{.points = {{0, nan}, {1, infinity}, {2, 5}}, .markers = true}}});
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(count(svg, "<circle"), 1);
  EXPECT_EQ(draw_chart({}).find("nan"), std::string::npos);
}

TEST(EscapeMarkup, LeavesNoMarkup) {
  EXPECT_EQ(escape_markup("<script>'\"&\x01"), "&lt;script&gt;&#39;&quot;&amp;?");
}

TEST(FormatValue, IsShort) {
  EXPECT_EQ(format_value(0), "0");
  EXPECT_EQ(format_value(0.123456), "0.1235");
  EXPECT_EQ(format_value(12345), "12.35k");
  EXPECT_EQ(format_value(1e-6), "1e-06");
  EXPECT_EQ(format_value(2500000), "2.5M");
  EXPECT_EQ(format_value(std::nan("")), "-");
}

}  // namespace
}  // namespace tailrace
