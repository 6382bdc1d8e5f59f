#include "cli/view/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace tailrace {
namespace {

// The page that holds a chart defines the same classes; see report_page.cc.
constexpr std::string_view kStandaloneStyle = R"(<style>
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#57606a}.title{font-size:14px;font-weight:600;fill:#1f2328}
.grid{stroke:#d0d7de;stroke-width:1}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.faint{opacity:.28;stroke-width:1.2}
.c0{stroke:#0969da}.c1{stroke:#1a7f37}.c2{stroke:#bc4c00}.c3{stroke:#8250df}.d0{fill:#0969da}.d1{fill:#1a7f37}.d2{fill:#bc4c00}.d3{fill:#8250df}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.title{fill:#f0f6fc}.grid{stroke:#3d444d}.c0{stroke:#4493f8}.c1{stroke:#3fb950}.c2{stroke:#f0883e}.c3{stroke:#ab7df8}.d0{fill:#4493f8}.d1{fill:#3fb950}.d2{fill:#f0883e}.d3{fill:#ab7df8}}
</style>)";

using ChartPoints = std::vector<std::pair<double, double>>;

ChartPoints finite_points(const ChartPoints& points) {
  ChartPoints out;
  for (auto point : points)
    if (std::isfinite(point.first) && std::isfinite(point.second)) out.push_back(point);
  return out;
}

// Maps values to pixels of the plot area.
struct Frame {
  double x_low, x_high, y_low, y_high;
  double left, right, top, bottom;

  double x(double value) const {
    return left + (value - x_low) / (x_high - x_low) * (right - left);
  }
  double y(double value) const {
    return bottom - (value - y_low) / (y_high - y_low) * (bottom - top);
  }
};

// Widens an empty or degenerate range so that it has a middle.
void widen(double& low, double& high) {
  // Without a point the lower end is +infinity, the upper -infinity.
  if (!(low <= high)) low = 0, high = 1;
  // Values that differ in their last digits alone are one: between them no tick would be another.
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= 1e-9 * size || low == high) {
    double margin = size == 0 ? 1 : size * 0.1;
    low -= margin;
    high += margin;
  }
}

Frame make_frame(const Chart& chart, const std::vector<ChartPoints>& all) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // The pixels leave room for the labels at the left and below, and for the title.
  Frame frame{kInfinity, -kInfinity,         kInfinity, -kInfinity,
              52,        chart.width - 14.0, 34,        chart.height - 36.0};
  for (const ChartPoints& points : all)
    for (auto [x, y] : points) {
      frame.x_low = std::min(frame.x_low, x);
      frame.x_high = std::max(frame.x_high, x);
      frame.y_low = std::min(frame.y_low, y);
      frame.y_high = std::max(frame.y_high, y);
    }
  widen(frame.x_low, frame.x_high);
  widen(frame.y_low, frame.y_high);
  // A margin keeps lines off the frame.
  double margin = (frame.y_high - frame.y_low) * 0.05;
  frame.y_low = chart.y_min.value_or(frame.y_low - margin);
  frame.y_high = chart.y_max.value_or(frame.y_high + margin);
  return frame;
}

std::string draw_line(const Frame& frame, const ChartPoints& points, int color,
                      std::string_view extra) {
  if (points.empty()) return "";
  std::string path;
  for (auto [x, y] : points)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", frame.x(x), frame.y(y));
  return fmt::format("<path class=\"line c{}{}\" d=\"{}\"/>\n", color, extra, path);
}

std::string draw_series(const Frame& frame, const ChartSeries& series, const ChartPoints& points) {
  std::string out;
  // An average of a handful of points would only move them.
  bool smooth = series.smooth && points.size() >= 8;
  out += draw_line(frame, points, series.color, smooth ? " faint" : "");
  if (smooth) out += draw_line(frame, moving_average(points), series.color, "");
  // A line of one point cannot be seen.
  if (series.markers || points.size() == 1)
    for (auto [x, y] : points)
      out += fmt::format(
          "<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"><title>{}: {} at "
          "{}</title></circle>\n",
          series.color, frame.x(x), frame.y(y), escape_markup(series.name), format_value(y),
          format_value(x));
  return out;
}

std::string draw_axes(const Chart& chart, const Frame& frame) {
  std::string out;
  for (double tick : round_ticks(frame.y_low, frame.y_high, 5))
    out += fmt::format(
        "<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        frame.left, frame.right, frame.y(tick), frame.y(tick), frame.left - 7, frame.y(tick) + 4,
        format_value(tick));
  for (double tick : round_ticks(frame.x_low, frame.x_high, 6))
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n",
                       frame.x(tick), frame.bottom + 17, format_value(tick));
  out += fmt::format("<text x=\"{:.0f}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", frame.right,
                     chart.height - 4, escape_markup(chart.x_label));
  return out;
}

// Title at the left, the names of several series at the right.
std::string draw_head(const Chart& chart) {
  std::string out =
      fmt::format("<text class=\"title\" x=\"6\" y=\"17\">{}</text>\n", escape_markup(chart.title));
  if (chart.series.size() < 2) return out;
  double x = chart.width - 14;
  for (auto series = chart.series.rbegin(); series != chart.series.rend(); ++series) {
    out += fmt::format("<text x=\"{:.0f}\" y=\"17\" text-anchor=\"end\">{}</text>\n", x,
                       escape_markup(series->name));
    // About 7 pixels a letter: an SVG without scripts cannot measure its text.
    x -= 7.0 * static_cast<double>(series->name.size()) + 10;
    out += fmt::format("<circle class=\"d{}\" cx=\"{:.0f}\" cy=\"13\" r=\"4\"/>\n", series->color,
                       x + 2);
    x -= 16;
  }
  return out;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // XML has no place for the other control characters.
        out +=
            static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' && c != '\r' ? '?' : c;
    }
  }
  return out;
}

std::string format_value(double value) {
  if (!std::isfinite(value)) return "-";
  double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e9)) return fmt::format("{:.2g}", value);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::vector<double> round_ticks(double low, double high, int count) {
  double raw = (high - low) / std::max(1, count);
  double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power;
  for (double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    // Less than 1, since powers of ten are not exact in binary.
    if (step >= raw * 0.999) break;
  }
  std::vector<double> ticks;
  // Plus 0.0, which turns -0 into 0.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    ticks.push_back(i * step + 0.0);
  return ticks;
}

ChartPoints moving_average(const ChartPoints& points) {
  auto count = static_cast<std::ptrdiff_t>(points.size());
  // A tenth of the points, half of it on each side.
  std::ptrdiff_t half = std::max<std::ptrdiff_t>(1, count / 20);
  ChartPoints out;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    // The same reach on both sides, so that a slope is not shifted; it shrinks at the ends.
    std::ptrdiff_t reach = std::min({half, i, count - 1 - i});
    double sum = 0;
    for (std::ptrdiff_t j = i - reach; j <= i + reach; ++j)
      sum += points[static_cast<size_t>(j)].second;
    out.emplace_back(points[static_cast<size_t>(i)].first,
                     sum / static_cast<double>(2 * reach + 1));
  }
  return out;
}

std::string draw_chart(const Chart& chart) {
  std::vector<ChartPoints> all;
  for (const ChartSeries& series : chart.series) all.push_back(finite_points(series.points));
  Frame frame = make_frame(chart, all);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">\n",
      chart.width, chart.height, escape_markup(chart.title));
  if (chart.standalone) out += kStandaloneStyle;
  out += draw_head(chart);
  out += draw_axes(chart, frame);
  for (size_t i = 0; i < all.size(); ++i) out += draw_series(frame, chart.series[i], all[i]);
  return out + "</svg>\n";
}

}  // namespace tailrace
