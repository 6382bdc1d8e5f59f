#include "cli/view/curves_section.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "cli/view/chart.h"
#include "core/run/stage_row.h"

namespace tailrace {
namespace {

using Rows = std::span<const MetricsRow>;

constexpr std::string_view kKnown[] = {"reward/mean",
                                       "env/success",
                                       "eval/success",
                                       "eval/reward",
                                       "rollout/response_tokens/mean",
                                       "policy/entropy",
                                       "policy/grad_norm",
                                       "perf/tokens_per_s",
                                       "policy/loss",
                                       "sft/loss",
                                       "sft/eval_loss",
                                       "sft/eval_token_accuracy",
                                       "preference/loss",
                                       "preference/eval_loss",
                                       "rewards/margins",
                                       "rewards/accuracies",
                                       "eval_rewards/accuracies",
                                       "distill/loss",
                                       "distill/eval_loss",
                                       "reward_model/loss",
                                       "reward_model/accuracy",
                                       "reward_model/eval_accuracy",
                                       "rollout/turns/mean",
                                       "rollout/truncated_frac",
                                       "rollout/zero_signal_frac",
                                       "policy/kl_step",
                                       "policy/kl_old",
                                       "policy/lr",
                                       "mismatch/abs_logprob_diff"};

// A metric of a training on rows, whose rows count updates.
bool is_of_updates(std::string_view name) {
  const std::string_view section = name.substr(0, name.find('/'));
  constexpr std::string_view kTrl[] = {"rewards", "logps", "eval_rewards", "eval_logps"};
  return std::ranges::find(kRowStages, section) != std::end(kRowStages) ||
         std::ranges::find(kTrl, section) != std::end(kTrl);
}

// The datasets of a run with several: each has its own reward/NAME/mean.
std::set<std::string> datasets_of(Rows rows) {
  constexpr std::string_view kSection = "reward/", kMean = "/mean";
  std::set<std::string> datasets;
  for (const MetricsRow& row : rows) {
    for (const auto& [name, value] : row.values) {
      if (name.starts_with(kSection) && name.ends_with(kMean) &&
          name.size() > kSection.size() + kMean.size())
        datasets.insert(name.substr(kSection.size(), name.size() - kSection.size() - kMean.size()));
    }
  }
  return datasets;
}

// The name of `name` in the part of a row that is this dataset's.
std::string name_in(const std::string& dataset, const std::string& name) {
  const size_t slash = name.find('/');
  return fmt::format("{}/{}{}", name.substr(0, slash), dataset, name.substr(slash));
}

// The dataset whose part of a row has this name, and what the name is without it; else nothing.
std::optional<std::pair<std::string, std::string>> part_of(const std::string& name,
                                                           const std::set<std::string>& datasets) {
  const size_t first = name.find('/'), second = name.find('/', first + 1);
  if (second == std::string::npos) return std::nullopt;
  std::string dataset = name.substr(first + 1, second - first - 1);
  // Metrics of environments may have slashes too: only the name of a dataset makes a part of this
  // one.
  if (!datasets.contains(dataset)) return std::nullopt;
  return std::pair(std::move(dataset), name.substr(0, first) + name.substr(second));
}

// All names in the order in which they are worth reading: the well-known first, each with those of
// the datasets behind it, the rest by group.
struct Names {
  std::vector<std::string> known, others;
};

Names names_of(Rows rows) {
  std::set<std::string> all;
  for (const MetricsRow& row : rows)
    for (const auto& [name, value] : row.values) all.insert(name);
  const std::set<std::string> datasets = datasets_of(rows);
  Names names;
  const auto take = [&](const std::string& name) {
    if (all.erase(name)) names.known.push_back(name);
  };
  for (const std::string_view name : kKnown) {
    take(std::string(name));
    for (const std::string& dataset : datasets) take(name_in(dataset, std::string(name)));
  }
  names.others.assign(all.begin(), all.end());
  return names;
}

std::vector<std::string> all_of(Names names) {
  names.known.insert(names.known.end(), names.others.begin(), names.others.end());
  return std::move(names.known);
}

// The same in all rows that have it, of which there is more than one.
bool is_constant(const Points& points) {
  const double first = points.front().second;
  return points.size() > 1 && std::ranges::all_of(points, [&](const auto& point) {
           return point.second == first || (std::isnan(point.second) && std::isnan(first));
         });
}

// Charts of these names, and how many there are.
class Charts {
 public:
  explicit Charts(Rows rows) : rows_(rows), datasets_(datasets_of(rows)) {}

  std::pair<std::string, int> draw(const std::vector<std::string>& names) {
    std::string out = "<div class=\"charts\">\n";
    int count = 0;
    for (const std::string& name : names) {
      Chart chart = chart_of(name);
      if (chart.series.empty()) continue;
      // Shares, on one scale: curves of two runs can be compared by eye. A little beyond, so that 0
      // and 1 are not on the frame.
      if (name.ends_with("success") || name.ends_with("_frac") || name.ends_with("accuracy"))
        chart.y_min = -0.02, chart.y_max = 1.02;
      out += fmt::format("<div class=\"chart\">{}</div>\n", draw_chart(chart));
      ++count;
    }
    return {out + "</div>\n", count};
  }

 private:
  // Without series where nothing changes.
  Chart chart_of(const std::string& name) {
    Chart chart{.title = name, .x_label = is_of_updates(name) ? "update" : "step", .series = {}};
    const auto part = part_of(name, datasets_);
    if (!part) {
      add(chart, name, name, color_);
      color_ += static_cast<int>(chart.series.size());
      return chart;
    }
    // All datasets in one chart.
    if (!drawn_.insert(part->second).second) return chart;
    chart.title = part->second + ", by dataset";
    int own = 0;
    bool is_flat = true;
    for (const std::string& dataset : datasets_) {
      add(chart, dataset, name_in(dataset, part->second), own++);
      is_flat = is_flat && !changes(name_in(dataset, part->second));
    }
    if (is_flat) chart.series.clear();
    return chart;
  }

  bool changes(const std::string& name) const {
    const Points points = series_of(rows_, name);
    // One point is no curve; the table has it.
    return points.size() > 1 && !is_constant(points);
  }

  void add(Chart& chart, const std::string& label, const std::string& name, int color) const {
    const bool evaluation = name.starts_with("eval/");
    Points points = series_of(rows_, name);
    // Beside datasets that change a constant one is a curve.
    if (points.size() < 2 || (label == name && !changes(name))) return;
    chart.series.push_back({.name = label,
                            .points = std::move(points),
                            .color = color % 4,
                            .markers = evaluation,
                            .smooth = !evaluation});
  }

  Rows rows_;
  std::set<std::string> datasets_;
  std::set<std::string> drawn_;  // of what datasets have, by the name without theirs
  int color_ = 0;
};

std::string table_row(const std::string& name, const Points& points) {
  double low = points.front().second, high = low;
  for (const auto& [x, y] : points) {
    // fmin and fmax pass over NaN, as which a null of the file is read.
    low = std::fmin(low, y);
    high = std::fmax(high, y);
  }
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
      escape_markup(name), format_value(points.front().second), format_value(points.back().second),
      format_value(low), format_value(high), points.size());
}

std::string fold(std::string_view summary, std::string_view content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", summary, content);
}

std::string count(int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

Points series_of(std::span<const MetricsRow> rows, std::string_view name) {
  Points points;
  for (const MetricsRow& row : rows)
    if (const double* value = row.find(name))
      points.emplace_back(static_cast<double>(row.step), *value);
  return points;
}

std::span<const std::string_view> known_metrics() { return kKnown; }

std::string curves_section(std::span<const MetricsRow> rows) {
  const Names names = names_of(rows);
  Charts charts(rows);
  std::string out = "<h2>Curves</h2>\n" + charts.draw(names.known).first;
  const auto [others, number] = charts.draw(names.others);
  if (number > 0) out += fold(count(number, "more curve"), others);
  return out;
}

std::string metrics_tables(std::span<const MetricsRow> rows) {
  std::string changing, constant;
  int64_t num_changing = 0, num_constant = 0;
  for (const std::string& name : all_of(names_of(rows))) {
    // Every name comes from some row, so there is a point.
    const Points points = series_of(rows, name);
    if (is_constant(points)) {
      ++num_constant;
      constant += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_markup(name),
                              format_value(points.front().second));
    } else {
      ++num_changing;
      changing += table_row(name, points);
    }
  }
  std::string out = "<h2>All metrics</h2>\n";
  if (num_changing > 0)
    out += fold(count(num_changing, "metric") + ": first, last, lowest and highest value",
                "<table><tr><th>name</th><th>first</th><th>last</th><th>lowest</th><th>highest</th>"
                "<th>rows</th></tr>\n" +
                    changing + "</table>\n");
  if (num_constant > 0)
    out += fold(count(num_constant, "metric") + " stayed constant",
                "<table><tr><th>name</th><th>value</th></tr>\n" + constant + "</table>\n");
  return out;
}

}  // namespace tailrace
