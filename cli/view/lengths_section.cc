#include "cli/view/lengths_section.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "cli/view/chart.h"

namespace tailrace {
namespace {

using Steps = std::map<int64_t, StepLengths>;

constexpr size_t kNumColors = 4;  // of a chart

// The deciles of many steps together. Of a step only its own deciles are known: each of them stands
// for an equal part of its samples.
std::optional<Deciles> together(const Steps& steps, Deciles TimelineRow::Trained::*of) {
  std::vector<std::pair<int64_t, double>> values;  // with their weights
  double all = 0;
  int64_t low = 0, high = 0;
  for (const auto& [step, lengths] : steps) {
    const TimelineRow::Trained& trained = lengths.trained;
    if (trained.samples == 0) continue;
    const Deciles& deciles = trained.*of;
    low = values.empty() ? deciles.front() : std::min(low, deciles.front());
    high = values.empty() ? deciles.back() : std::max(high, deciles.back());
    for (const int64_t value : deciles) {
      values.emplace_back(value, static_cast<double>(trained.samples));
      all += static_cast<double>(trained.samples);
    }
  }
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  Deciles deciles{};
  // The two ends are exact, as the least and the largest of all samples.
  deciles.front() = low;
  deciles.back() = high;
  double below = 0;
  size_t next = 1;
  for (const auto& [value, weight] : values) {
    below += weight;
    for (; next < deciles.size() - 1 && below >= all * static_cast<double>(next) / 10; ++next)
      deciles[next] = value;
  }
  return deciles;
}

std::optional<Deciles> of_discarded(const Steps& steps, std::vector<int64_t> Discards::*of) {
  std::vector<int64_t> values;
  for (const auto& [step, lengths] : steps) {
    const auto& some = lengths.discarded.*of;
    values.insert(values.end(), some.begin(), some.end());
  }
  if (values.empty()) return std::nullopt;
  return deciles_of(std::move(values));
}

std::string by_step(const Steps& steps, std::string_view title, Deciles TimelineRow::Trained::*of) {
  Chart chart{.title = std::string(title)};
  constexpr std::array<std::pair<const char*, size_t>, kNumColors> kLines = {
      {{"10 %", 1}, {"50 %", 5}, {"90 %", 9}, {"all", 10}}};
  for (size_t i = 0; i < kLines.size(); ++i) {
    ChartSeries series{.name = kLines[i].first, .points = {}, .color = static_cast<int>(i)};
    for (const auto& [step, lengths] : steps) {
      if (lengths.trained.samples == 0) continue;
      series.points.emplace_back(static_cast<double>(step),
                                 static_cast<double>((lengths.trained.*of)[kLines[i].second]));
    }
    chart.series.push_back(std::move(series));
  }
  return fmt::format("<div class=\"chart\">{}</div>\n", draw_chart(chart));
}

std::string discarded_by_step(const Steps& steps) {
  std::map<std::string, int64_t> causes;
  for (const auto& [step, lengths] : steps) {
    for (const auto& [cause, count] : lengths.discarded.by_cause) causes[cause] += count;
  }
  if (causes.empty()) return "";
  Chart chart{.title = "discarded samples", .y_min = 0};
  for (const auto& [cause, total] : causes) {
    if (chart.series.size() == kNumColors) break;
    ChartSeries series{.name = cause, .points = {}, .color = static_cast<int>(chart.series.size())};
    for (const auto& [step, lengths] : steps) {
      const auto count = lengths.discarded.by_cause.find(cause);
      series.points.emplace_back(
          static_cast<double>(step),
          count == lengths.discarded.by_cause.end() ? 0 : static_cast<double>(count->second));
    }
    chart.series.push_back(std::move(series));
  }
  return fmt::format("<div class=\"chart\">{}</div>\n", draw_chart(chart));
}

// Pairs of bars: each the value that so many per cent of the samples do not exceed.
std::string bars(std::string_view title, const std::optional<Deciles>& trained,
                 const std::optional<Deciles>& discarded) {
  if (!trained && !discarded) return "";
  constexpr double kWidth = 480, kHeight = 240, kLeft = 52, kTop = 34, kBottom = 204;
  double most = 1;
  for (const auto* deciles : {&trained, &discarded}) {
    if (*deciles) most = std::max(most, static_cast<double>((*deciles)->back()));
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<text class=\"title\" x=\"6\" y=\"17\">{2}</text>\n",
      kWidth, kHeight, title);
  const auto y = [&](double value) { return kBottom - value / most * (kBottom - kTop); };
  for (const double tick : round_ticks(0, most, 5))
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kWidth - 14, y(tick), kLeft - 7, y(tick) + 4, format_value(tick));
  const double pitch = (kWidth - 14 - kLeft) / 10;
  for (size_t i = 1; i <= 10; ++i) {
    const double left = kLeft + pitch * static_cast<double>(i - 1);
    const auto bar = [&](const std::optional<Deciles>& deciles, int color, double from) {
      if (!deciles) return;
      const auto value = static_cast<double>((*deciles)[i]);
      out += fmt::format(
          "<rect class=\"d{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>"
          "{}: {} % at most {}</title></rect>\n",
          color, left + from * pitch, y(value), 0.36 * pitch, kBottom - y(value),
          color == 0 ? "trained" : "discarded", 10 * i, format_value(value));
    };
    bar(trained, 0, 0.12);
    bar(discarded, 2, 0.5);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       left + pitch / 2, kBottom + 16, 10 * i);
  }
  const auto name = [&](std::string_view text, int color, double at) {
    out += fmt::format(
        "<circle class=\"d{}\" cx=\"{}\" cy=\"13\" r=\"4\"/><text x=\"{}\" "
        "y=\"17\">{}</text>\n",
        color, at, at + 8, text);
  };
  if (trained) name("trained", 0, kWidth - 160);
  if (discarded) name("discarded", 2, kWidth - 84);
  return fmt::format(
      "<div class=\"chart\">{}<text x=\"{}\" y=\"{}\" text-anchor=\"end\">% of the "
      "samples</text></svg>\n</div>\n",
      out, kWidth - 14, kHeight - 4);
}

std::string table_row(std::string_view name, int64_t samples, const std::optional<Deciles>& of) {
  if (!of) return "";
  std::string out = fmt::format("<tr><td>{}</td><td>{}</td>", name, samples);
  for (const int64_t value : *of) out += fmt::format("<td>{}</td>", value);
  return out + "</tr>\n";
}

}  // namespace

Steps lengths_of(std::span<const TimelineRow> rows) {
  Steps steps;
  Discards pending;
  for (const TimelineRow& row : rows) {
    if (row.what == TimelineWhat::kDiscarded) {
      pending.by_cause[row.end] += std::ssize(row.samples);
      pending.samples += std::ssize(row.samples);
      for (const TimelineRow::Sample& sample : row.samples) {
        pending.truncated += sample.truncated;
        if (sample.tokens >= 0) pending.tokens.push_back(sample.tokens);
        if (sample.staleness >= 0) pending.staleness.push_back(sample.staleness);
      }
    } else if (row.what == TimelineWhat::kStep) {
      // From here on another lineage was trained.
      steps.erase(steps.lower_bound(row.number), steps.end());
      steps[row.number] = {row.trained, std::exchange(pending, {})};
    }
  }
  return steps;
}

std::string lengths_section(std::span<const TimelineRow> rows) {
  const Steps steps = lengths_of(rows);
  if (steps.empty()) return "";
  int64_t trained = 0, discarded = 0;
  for (const auto& [step, lengths] : steps) {
    trained += lengths.trained.samples;
    discarded += lengths.discarded.samples;
  }
  const auto tokens = together(steps, &TimelineRow::Trained::tokens);
  const auto stale = together(steps, &TimelineRow::Trained::staleness);
  const auto lost_tokens = of_discarded(steps, &Discards::tokens);
  const auto lost_stale = of_discarded(steps, &Discards::staleness);
  std::string out = fmt::format(
      "<h2>Samples by decile</h2>\n<p class=\"sub\">{} samples were trained, {} finished ones were "
      "discarded. Staleness: versions between the oldest weights that sampled a token and those "
      "that the step started from; of a discarded sample, those that were newest then.</p>\n"
      "<div class=\"charts\">\n",
      trained, discarded);
  out += bars("response tokens, by decile", tokens, lost_tokens);
  const bool is_stale = (stale && stale->back() > 0) || (lost_stale && lost_stale->back() > 0);
  // All 0 is no picture; the table says so.
  if (is_stale) out += bars("staleness in versions, by decile", stale, lost_stale);
  if (steps.size() > 1) {
    out += by_step(steps, "response tokens of trained samples", &TimelineRow::Trained::tokens);
    if (is_stale)
      out += by_step(steps, "staleness of trained samples", &TimelineRow::Trained::staleness);
    out += discarded_by_step(steps);
  }
  out += "</div>\n<div class=\"wide\"><table><tr><th>decile</th><th>samples</th><th>0 %</th>";
  for (int i = 1; i <= 10; ++i) out += fmt::format("<th>{} %</th>", 10 * i);
  out += "</tr>\n";
  out += table_row("response tokens, trained", trained, tokens);
  out += table_row("response tokens, discarded", discarded, lost_tokens);
  out += table_row("staleness, trained", trained, stale);
  out += table_row("staleness, discarded", discarded, lost_stale);
  return out + "</table></div>\n";
}

}  // namespace tailrace
