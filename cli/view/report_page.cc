#include "cli/view/report_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "cli/view/chart.h"
#include "cli/view/lengths_section.h"
#include "cli/view/signal.h"
#include "cli/view/worker_chart.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/version.h"

namespace tailrace {
namespace {

// Nothing is loaded, neither script nor font: the page is one file that works offline.
constexpr std::string_view kStyle = R"(
:root{--bg:#fff;--card:#fff;--fg:#1f2328;--soft:#57606a;--line:#d0d7de;--tint:#f6f8fa;--c0:#0969da;--c1:#1a7f37;--c2:#bc4c00;--c3:#8250df;--mark:#ddf4ff;--good:#1a7f37;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--card:#151b23;--fg:#f0f6fc;--soft:#9198a1;--line:#3d444d;--tint:#151b23;--c0:#4493f8;--c1:#3fb950;--c2:#f0883e;--c3:#ab7df8;--mark:#0c2d5b;--good:#3fb950;--bad:#f85149}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}h2{font-size:18px;margin:40px 0 12px}
.sub{color:var(--soft);margin:0 0 20px}
.tiles{display:flex;flex-wrap:wrap;gap:12px}
.tile{flex:1 1 150px;border:1px solid var(--line);border-radius:10px;padding:12px 16px;background:var(--card)}
.tile b{display:block;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;white-space:nowrap}.tile span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(340px,1fr));gap:14px}
.chart{border:1px solid var(--line);border-radius:10px;padding:10px 10px 4px;background:var(--card)}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg .title{font-size:14px;font-weight:600;fill:var(--fg)}
.grid{stroke:var(--line);stroke-width:1;opacity:.7}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.faint{opacity:.28;stroke-width:1.2}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.d0{fill:var(--c0)}.d1{fill:var(--c1)}.d2{fill:var(--c2)}.d3{fill:var(--c3)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:14px}
.pair h3{font-size:15px;margin:0 0 8px;color:var(--soft);font-weight:600}
.sample{border:1px solid var(--line);border-radius:10px;margin:0 0 12px;overflow:hidden;background:var(--card)}
.sample header{display:flex;gap:12px;padding:6px 12px;background:var(--tint);border-bottom:1px solid var(--line);font-size:13px;color:var(--soft)}
.sample pre{margin:0;padding:10px 12px;max-height:280px;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;color:var(--soft)}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
pre,code,td{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
mark{background:var(--mark);color:var(--fg);border-radius:3px;padding:0 1px}
table{border-collapse:collapse;width:100%}th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;font-variant-numeric:tabular-nums}
th{font-size:13px;color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
details{border:1px solid var(--line);border-radius:10px;padding:10px 14px;background:var(--card)}summary{cursor:pointer;font-weight:600}
.note{color:var(--bad)}
)";

using Points = std::vector<std::pair<double, double>>;

Points series_of(const std::vector<MetricsRow>& rows, std::string_view name) {
  // Supervised warm-up counts its own updates; everything else is over the steps of the run.
  bool warm_up = name.starts_with("sft/");
  Points points;
  for (const MetricsRow& row : rows)
    if (const double* value = row.find(name))
      points.emplace_back(
          warm_up ? static_cast<double>(points.size()) : static_cast<double>(row.step), *value);
  return points;
}

// Of a run with several: each has its own reward/NAME/mean.
std::set<std::string> datasets_of(const std::vector<MetricsRow>& rows) {
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

// What `name` is called in the part of a row that is this dataset's.
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
  if (!datasets.contains(dataset)) return std::nullopt;
  return std::pair(std::move(dataset), name.substr(0, first) + name.substr(second));
}

// All names in the order in which they are worth reading: the well-known first, each with those of
// the datasets behind it, the rest by group.
std::vector<std::string> ordered_names(const std::vector<MetricsRow>& rows) {
  static const std::vector<std::string> first = {"reward/mean",
                                                 "env/success",
                                                 "eval/success",
                                                 "eval/reward",
                                                 "rollout/response_tokens/mean",
                                                 "policy/entropy",
                                                 "policy/grad_norm",
                                                 "perf/tokens_per_s",
                                                 "policy/loss",
                                                 "sft/loss",
                                                 "rollout/turns/mean",
                                                 "rollout/truncated_frac",
                                                 "rollout/zero_signal_frac",
                                                 "policy/kl_old",
                                                 "policy/lr",
                                                 "mismatch/abs_logprob_diff"};
  std::set<std::string> all;
  for (const MetricsRow& row : rows)
    for (const auto& [name, value] : row.values) all.insert(name);
  const std::set<std::string> datasets = datasets_of(rows);
  std::vector<std::string> names;
  const auto take = [&](const std::string& name) {
    if (all.erase(name)) names.push_back(name);
  };
  for (const std::string& name : first) {
    take(name);
    for (const std::string& dataset : datasets) take(name_in(dataset, name));
  }
  names.insert(names.end(), all.begin(), all.end());
  return names;
}

std::string tile(std::string_view label, const std::string& value) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_markup(value),
                     escape_markup(label));
}

std::string format_seconds(double seconds) {
  auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 100) return fmt::format("{} s", total);
  if (total < 6000) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

std::string tiles(const ReportData& data) {
  std::string out = "<div class=\"tiles\">\n";
  auto change = [&](std::string_view label, const Points& points) {
    if (points.empty()) return;
    double from = points.front().second, to = points.back().second;
    out += tile(label, points.size() == 1
                           ? format_value(to)
                           : fmt::format("{} → {}", format_value(from), format_value(to)));
  };
  change("success, held-out", series_of(data.rows, "eval/success"));
  change("reward, held-out", series_of(data.rows, "eval/reward"));
  change("reward, training", moving_average(series_of(data.rows, "reward/mean")));
  int64_t steps = 0;
  for (const MetricsRow& row : data.rows)
    if (row.version >= 0) steps = std::max(steps, row.step);
  out += tile("steps", fmt::format("{}", steps));
  if (data.rows.size() > 1)
    out += tile("time",
                format_seconds(data.rows.back().unix_seconds - data.rows.front().unix_seconds));
  Points speed = series_of(data.rows, "perf/tokens_per_s");
  if (!speed.empty()) {
    // A few slow steps, as of a machine that was busy, do not move a median.
    std::sort(speed.begin(), speed.end(), [](auto a, auto b) { return a.second < b.second; });
    out += tile("tokens/s, median", format_value(speed[speed.size() / 2].second));
  }
  return out + "</div>\n";
}

std::string charts(const ReportData& data) {
  std::string out = "<div class=\"charts\">\n";
  const std::set<std::string> datasets = datasets_of(data.rows);
  std::set<std::string> drawn;  // of what datasets have, by the name without theirs
  int color = 0;
  for (const std::string& name : ordered_names(data.rows)) {
    bool evaluation = name.starts_with("eval/");
    Chart chart{.title = name, .x_label = name.starts_with("sft/") ? "row" : "step", .series = {}};
    const auto add = [&](const std::string& label, const std::string& series, int of_palette) {
      Points points = series_of(data.rows, series);
      // One point is no curve; the table has it.
      if (points.size() < 2) return;
      chart.series.push_back({.name = label,
                              .points = std::move(points),
                              .color = of_palette % 4,
                              .markers = evaluation,
                              .smooth = !evaluation});
    };
    if (const auto part = part_of(name, datasets)) {
      // All datasets in one chart.
      if (!drawn.insert(part->second).second) continue;
      chart.title = part->second + ", by dataset";
      int own = 0;
      for (const std::string& dataset : datasets)
        add(dataset, name_in(dataset, part->second), own++);
    } else {
      add(name, name, color);
      color += std::ssize(chart.series);
    }
    if (chart.series.empty()) continue;
    // Shares, on one scale: curves of two runs can be compared by eye. A little beyond, so that 0
    // and 1 are not on the frame.
    if (name.ends_with("success") || name.ends_with("_frac"))
      chart.y_min = -0.02, chart.y_max = 1.02;
    out += fmt::format("<div class=\"chart\">{}</div>\n", draw_chart(chart));
  }
  return out + "</div>\n";
}

std::string sample_card(const Sample& sample) {
  std::string head;
  if (sample.success)
    head += fmt::format("<span class=\"{}\">{}</span>", *sample.success > 0 ? "good" : "bad",
                        *sample.success > 0 ? "success" : "no success");
  if (!sample.dataset.empty())
    head += fmt::format("<span>{}</span>", escape_markup(sample.dataset));
  if (sample.reward) head += fmt::format("<span>reward {}</span>", format_value(*sample.reward));
  if (!sample.name.empty()) head += fmt::format("<code>{}</code>", escape_markup(sample.name));
  std::string text;
  for (size_t i = 0; i < sample.segments.size(); ++i) {
    // Another segment is a history that was rewritten.
    if (i > 0) text += "\n---\n";
    for (const SampleText& piece : sample.segments[i])
      text += piece.role == TokenRole::kSampled
                  ? fmt::format("<mark>{}</mark>", escape_markup(piece.text))
                  : escape_markup(piece.text);
  }
  return fmt::format("<div class=\"sample\"><header>{}</header><pre>{}</pre></div>\n", head, text);
}

// Up to four episodes of the first and of the last step that have any.
std::string samples(const ReportData& data) {
  if (data.samples.empty()) return "";
  auto [first, last] =
      std::minmax_element(data.samples.begin(), data.samples.end(),
                          [](const Sample& a, const Sample& b) { return a.step < b.step; });
  auto column = [&](std::string_view title, int64_t step) {
    std::string out = fmt::format("<div><h3>{}: step {}</h3>\n", title, step);
    int shown = 0;
    for (const Sample& sample : data.samples)
      if (sample.step == step && shown++ < 4) out += sample_card(sample);
    return out + "</div>\n";
  };
  std::string out =
      "<h2>Samples</h2><p class=\"sub\">What the policy wrote is marked; the rest is the "
      "environment's.</p><div class=\"pair\">\n";
  out += column("Before", first->step);
  if (last->step != first->step) out += column("After", last->step);
  return out + "</div>\n";
}

std::string table(const ReportData& data) {
  std::string out =
      "<h2>All "
      "metrics</h2>\n<table><tr><th>name</th><th>first</th><th>last</th><th>lowest</"
      "th><th>highest</th><th>rows</th></tr>\n";
  for (const std::string& name : ordered_names(data.rows)) {
    Points points = series_of(data.rows, name);
    // Every name comes from some row, so there is a point.
    double low = points.front().second, high = low;
    for (auto [x, y] : points) {
      // fmin and fmax pass over NaN, as which a null of the file is read.
      low = std::fmin(low, y);
      high = std::fmax(high, y);
    }
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escape_markup(name), format_value(points.front().second),
        format_value(points.back().second), format_value(low), format_value(high), points.size());
  }
  return out + "</table>\n";
}

}  // namespace

std::string make_report_page(const ReportData& data) {
  std::string notes;
  if (const std::string silent = signal_of_run(data.rows); !silent.empty())
    notes = fmt::format("<p class=\"note\">{}</p>\n", silent);
  for (const std::string& note : data.notes)
    notes += fmt::format("<p class=\"note\">{}</p>\n", escape_markup(note));
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>{0}: Tailrace "
      "report</title>\n<style>{1}{9}</style></head>\n"
      "<body><main>\n<h1>{0}</h1><p class=\"sub\">Tailrace "
      "{2}</p>\n{3}{4}<h2>Curves</h2>\n{5}{10}{11}{6}{7}"
      "<h2>Configuration</h2>\n<details><summary>config.yaml</summary><pre>{8}</pre></details>\n</"
      "main></body></html>\n",
      escape_markup(data.name), kStyle, version(), notes, tiles(data), charts(data), samples(data),
      table(data), escape_markup(data.config), kWorkerStyle, worker_section(data.timeline),
      lengths_section(data.timeline));
}

std::string make_learning_curve(const ReportData& data) {
  Chart chart{.title = data.name, .width = 760, .height = 320, .standalone = true};
  chart.series.push_back({.name = "training reward",
                          .points = series_of(data.rows, "reward/mean"),
                          .color = 0,
                          .smooth = true});
  bool has_success = !series_of(data.rows, "eval/success").empty();
  std::string_view eval_name = has_success ? "eval/success" : "eval/reward";
  Points evaluations = series_of(data.rows, eval_name);
  if (!evaluations.empty())
    chart.series.push_back({.name = has_success ? "held-out success" : "held-out reward",
                            .points = evaluations,
                            .color = 1,
                            .markers = true});
  // So that a share of 1 does not lie on the edge.
  if (has_success) chart.y_max = 1.03;
  return draw_chart(chart);
}

std::vector<TimelineRow> read_timeline_of(const RunPaths& paths, std::vector<std::string>& notes) {
  // Switched off, or of a run that began before there was one.
  if (!std::filesystem::exists(paths.timeline())) return {};
  auto file = read_timeline(paths.timeline());
  if (!file) {
    notes.push_back(file.failure().message);
    return {};
  }
  if (file.value().skipped_bytes > 0)
    notes.push_back(
        fmt::format("{} is large: what is shown of workers and samples begins at its byte "
                    "{} (scheduler.timeline_rows bounds what a step writes)",
                    paths.timeline().string(), file.value().skipped_bytes));
  for (const std::string& damaged : file.value().damaged) notes.push_back(damaged);
  if (file.value().num_damaged > std::ssize(file.value().damaged))
    notes.push_back(fmt::format("{} rows of {} are damaged in all", file.value().num_damaged,
                                paths.timeline().string()));
  return std::move(file).value().rows;
}

Result<ReportData> read_report_data(const RunPaths& paths) {
  auto rows = read_metrics(paths.metrics());
  if (!rows) return rows.failure();
  if (rows.value().empty())
    return Failure{fmt::format("{} has no rows yet", paths.metrics().string())};
  ReportData data;
  data.name = std::filesystem::absolute(paths.root).lexically_normal().filename();
  // "runs/x/" has no last part.
  if (data.name.empty())
    data.name = std::filesystem::absolute(paths.root).lexically_normal().parent_path().filename();
  data.rows = std::move(rows).value();
  // Curves without a config are still worth a page.
  auto config = read_file(paths.config());
  if (config)
    data.config = std::move(config).value();
  else
    data.notes.push_back(config.failure().message);
  data.timeline = read_timeline_of(paths, data.notes);
  if (std::filesystem::exists(paths.samples())) {
    try {
      auto tokenizer = text::load_tokenizer(paths.tokenizer());
      auto samples = read_samples(paths.samples(), *tokenizer);
      if (samples)
        data.samples = std::move(samples).value();
      else
        data.notes.push_back(samples.failure().message);
    } catch (const UserError& error) {
      // The report of a run without its tokenizer still has its curves.
      data.notes.push_back(error.what());
    }
  }
  return data;
}

Result<void> write_report(const RunPaths& paths) {
  auto data = read_report_data(paths);
  if (!data) return data.failure();
  return write_file_atomic(paths.report(), make_report_page(data.value()));
}

}  // namespace tailrace
