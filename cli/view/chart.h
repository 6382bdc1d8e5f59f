// Line charts as SVG text, for the report and the README.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tailrace {

struct ChartSeries {
  std::string name = {};
  // x ascending; points that are not finite are left out.
  std::vector<std::pair<double, double>> points;
  int color = 0;         // 0..3: an entry of the palette
  bool markers = false;  // dots at the points (few and exact, like evaluations)
  bool smooth = false;   // the points faint, their moving average strong
};

struct Chart {
  std::string title = {}, x_label = "step";
  std::vector<ChartSeries> series = {};
  std::optional<double> y_min = {}, y_max = {};  // absent: from the points
  int width = 480, height = 240;
  bool standalone = false;  // carries its own colours (a file), else those of the page around it
};

std::string draw_chart(const Chart& chart);

// About `count` round numbers from the first at or above `low` to the last at or below `high`. low
// < high.
std::vector<double> round_ticks(double low, double high, int count);

// The mean of each point and its neighbours, a tenth of the curve together; same x.
std::vector<std::pair<double, double>> moving_average(
    const std::vector<std::pair<double, double>>& points);

// Text for use in HTML or SVG.
std::string escape_markup(std::string_view text);

// "0.934", "12.3k", "1.2e-06": two to four significant digits.
std::string format_value(double value);

}  // namespace tailrace
