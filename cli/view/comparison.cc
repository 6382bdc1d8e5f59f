#include "cli/view/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/view/chart.h"
#include "cli/view/config_value.h"
#include "cli/view/curves_section.h"
#include "cli/view/run_facts.h"
#include "core/base/join_texts.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

using Values = std::vector<std::string>;
using Number = std::optional<double>;

Values values_of(std::span<const ReportData> runs,
                 const std::function<std::string(const ReportData&)>& value) {
  Values values;
  for (const ReportData& run : runs) values.push_back(value(run));
  return values;
}

bool says_nothing(const Values& values) { return std::ranges::all_of(values, &std::string::empty); }

// A row's time is that of the end of its step.
Number seconds_of_run(const ReportData& run) {
  if (run.rows.size() < 2) return std::nullopt;
  const double* first = run.rows.front().find("time/step");
  return run.rows.back().unix_seconds - run.rows.front().unix_seconds + (first ? *first : 0);
}

Points finite(Points points) {
  std::erase_if(points, [](const auto& point) { return !std::isfinite(point.second); });
  return points;
}

// Of a value that jumps from step to step, the mean of its last tenth says where it stands.
Number last_tenth(const ReportData& run, std::string_view name) {
  const Points points = finite(series_of(run.rows, name));
  if (points.empty()) return std::nullopt;
  const size_t count = std::max<size_t>(1, points.size() / 10);
  double sum = 0;
  for (const auto& [x, y] : std::span(points).last(count)) sum += y;
  return sum / static_cast<double>(count);
}

std::string format(Number value) { return value ? format_value(*value) : ""; }

// The scalars below a node by their dotted keys; a list of scalars is one value.
void flatten(const ConfigNode& node, const std::string& key,
             std::map<std::string, std::string>& out) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return;
    case ConfigNode::Kind::kScalar:
      out[key] = node.text;
      return;
    case ConfigNode::Kind::kMap:
      for (const auto& [name, child] : node.entries)
        flatten(child, key.empty() ? name : fmt::format("{}.{}", key, name), out);
      return;
    case ConfigNode::Kind::kList: {
      std::vector<std::string> scalars;
      for (size_t i = 0; i < node.items.size(); ++i) {
        const ConfigNode& item = node.items[i];
        const ConfigNode* name = item.kind == ConfigNode::Kind::kMap ? item.find("name") : nullptr;
        if (item.kind == ConfigNode::Kind::kScalar)
          scalars.push_back(item.text);
        else
          flatten(item, fmt::format("{}.{}", key, name ? name->text : std::to_string(i)), out);
      }
      if (!scalars.empty()) out[key] = fmt::format("[{}]", fmt::join(scalars, ", "));
      return;
    }
  }
}

std::string text_table(std::string_view title, std::span<const ComparedRow> rows,
                       const Values& heads) {
  constexpr size_t kWidest = 40;
  std::vector<size_t> widths(heads.size());
  size_t first = title.size();
  const auto shown = [](const std::string& text) {
    return text.empty() ? std::string("-") : printable(shortened(text, kWidest));
  };
  for (const ComparedRow& row : rows) first = std::max(first, row.what.size());
  for (size_t i = 0; i < heads.size(); ++i) {
    widths[i] = shown(heads[i]).size();
    for (const ComparedRow& row : rows)
      widths[i] = std::max(widths[i], shown(row.values[i]).size());
  }
  std::string out;
  const auto line = [&](std::string_view what, const Values& values) {
    std::string text = fmt::format("{:<{}}", what, first);
    for (size_t i = 0; i < values.size(); ++i)
      text += fmt::format("  {:<{}}", shown(values[i]), widths[i]);
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  line(title, heads);
  for (const ComparedRow& row : rows) line(row.what, row.values);
  return out;
}

std::string html_table(std::string_view title, std::span<const ComparedRow> rows,
                       const Values& heads) {
  std::string out = fmt::format("<h2>{}</h2>\n<table><tr><th></th>", title);
  for (const std::string& head : heads) out += fmt::format("<th>{}</th>", escape_markup(head));
  out += "</tr>\n";
  for (const ComparedRow& row : rows) {
    out += fmt::format("<tr><td>{}</td>", escape_markup(row.what));
    for (const std::string& value : row.values)
      out += fmt::format("<td>{}</td>", escape_markup(value.empty() ? "–" : value));
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

Values names_of(std::span<const ReportData> runs) {
  return values_of(runs, [](const ReportData& run) { return run.name; });
}

}  // namespace

std::vector<ComparedRow> compare_outcomes(std::span<const ReportData> runs) {
  std::vector<ComparedRow> rows;
  const auto add = [&](std::string what,
                       const std::function<std::string(const ReportData&)>& value) {
    Values values = values_of(runs, value);
    if (!says_nothing(values)) rows.push_back({std::move(what), std::move(values)});
  };
  add("steps", [](const ReportData& run) { return fmt::format("{}", last_step(run.rows)); });
  add("seconds", [](const ReportData& run) {
    const Number seconds = seconds_of_run(run);
    return seconds ? fmt::format("{:.0f}", *seconds) : "";
  });
  for (const std::string_view name : {"eval/success", "eval/reward"}) {
    const auto of = [name](const ReportData& run) { return finite(series_of(run.rows, name)); };
    add(fmt::format("{}, first", name), [&](const ReportData& run) {
      const Points points = of(run);
      return points.empty() ? "" : format_value(points.front().second);
    });
    add(fmt::format("{}, last", name), [&](const ReportData& run) {
      const Points points = of(run);
      return points.empty() ? "" : format_value(points.back().second);
    });
    add(fmt::format("{}, best (step)", name), [&](const ReportData& run) {
      const Points points = of(run);
      if (points.empty()) return std::string();
      const auto best = std::ranges::max_element(points, {}, &Points::value_type::second);
      return fmt::format("{} ({})", format_value(best->second), best->first);
    });
  }
  for (const std::string_view name :
       {"reward/mean", "env/success", "sft/eval_loss", "rollout/response_tokens/mean",
        "policy/entropy", "policy/kl_old", "policy/grad_norm", "perf/tokens_per_s"})
    add(fmt::format("{}, last tenth", name),
        [name](const ReportData& run) { return format(last_tenth(run, name)); });
  return rows;
}

std::vector<ComparedRow> compare_configs(std::span<const ReportData> runs) {
  std::vector<std::map<std::string, std::string>> configs;
  std::set<std::string> keys;
  for (const ReportData& run : runs) {
    auto& config = configs.emplace_back();
    flatten(read_config_text(run.config), "", config);
    for (const auto& [key, value] : config) keys.insert(key);
  }
  std::vector<ComparedRow> rows;
  for (const std::string& key : keys) {
    if (key == "run.name" || key == "run.dir") continue;
    Values values;
    for (const auto& config : configs) {
      const auto at = config.find(key);
      values.push_back(at == config.end() ? "" : at->second);
    }
    if (std::ranges::adjacent_find(values, std::not_equal_to<>()) != values.end())
      rows.push_back({key, std::move(values)});
  }
  return rows;
}

std::string comparison_text(std::span<const ReportData> runs) {
  const std::vector<ComparedRow> keys = compare_configs(runs);
  std::string text = text_table("run", compare_outcomes(runs), names_of(runs)) + "\n";
  return text + (keys.empty() ? "their configs are the same\n"
                              : text_table("config", keys, names_of(runs)));
}

std::string comparison_page(std::span<const ReportData> runs) {
  std::string body = "<div class=\"charts\">\n";
  for (const char* name :
       {"eval/success", "eval/reward", "reward/mean", "env/success", "rollout/response_tokens/mean",
        "policy/entropy", "policy/kl_old", "policy/grad_norm", "perf/tokens_per_s", "sft/loss"}) {
    const bool evaluation = std::string_view(name).starts_with("eval/");
    Chart chart{.title = name, .series = {}};
    for (size_t i = 0; i < runs.size(); ++i) {
      Points points = series_of(runs[i].rows, name);
      if (points.size() > 1)
        chart.series.push_back({.name = runs[i].name,
                                .points = std::move(points),
                                .color = static_cast<int>(i % kMostCompared),
                                .markers = evaluation,
                                .smooth = !evaluation});
    }
    if (!chart.series.empty())
      body += fmt::format("<div class=\"chart\">{}</div>\n", draw_chart(chart));
  }
  body += "</div>\n" + html_table("Outcome", compare_outcomes(runs), names_of(runs));
  const std::vector<ComparedRow> keys = compare_configs(runs);
  body += keys.empty() ? "<p>Their configs are the same.</p>\n"
                       : html_table("Keys that differ", keys, names_of(runs));
  return framed_page(join_texts(names_of(runs), " and "), body);
}

}  // namespace tailrace
