#include "cli/view/report_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "cli/view/chart.h"
#include "cli/view/curves_section.h"
#include "cli/view/health_section.h"
#include "cli/view/lengths_section.h"
#include "cli/view/run_facts.h"
#include "cli/view/samples_section.h"
#include "cli/view/worker_chart.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/version.h"
#include "core/run/stage_row.h"

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
.sub{color:var(--soft);margin:0 0 20px}h3{font-size:15px;margin:20px 0 8px;color:var(--soft);font-weight:600}
.facts{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0 0 20px;padding:12px 0;border-top:1px solid var(--line);border-bottom:1px solid var(--line)}
.facts div{min-width:0}.facts dt{color:var(--soft);font-size:12px}.facts dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:12px}
.tile{flex:1 1 120px;position:relative;overflow:hidden;border:1px solid var(--line);border-radius:10px;padding:12px 16px;background:var(--card)}
.tile b{display:block;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}.tile span{color:var(--soft);font-size:13px}
.tile svg{height:32px;margin:0 0 6px}.tile:has(svg){flex-grow:2;flex-basis:200px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(340px,1fr));gap:14px}
.chart{border:1px solid var(--line);border-radius:10px;padding:10px 10px 4px;background:var(--card)}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg .title{font-size:14px;font-weight:600;fill:var(--fg)}
.grid{stroke:var(--line);stroke-width:1;opacity:.7}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.faint{opacity:.28;stroke-width:1.2}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.d0{fill:var(--c0)}.d1{fill:var(--c1)}.d2{fill:var(--c2)}.d3{fill:var(--c3)}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}@media(max-width:700px){.pair{grid-template-columns:minmax(0,1fr)}}
.pair h3{margin:0 0 8px}
.sample{display:flex;flex-direction:column;border:1px solid var(--line);border-radius:10px;overflow:hidden;background:var(--card)}
.sample header{display:flex;flex-wrap:wrap;gap:12px;padding:6px 12px;background:var(--tint);border-bottom:1px solid var(--line);font-size:13px;color:var(--soft)}
.sample footer{padding:0 12px 8px;font-size:12px;color:var(--soft);opacity:.75}
.sample pre{flex:1;margin:0;padding:10px 12px;max-height:280px;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;color:var(--soft)}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
pre,code,td{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
mark{background:var(--mark);color:var(--fg);border-radius:3px;padding:0 1px}
table{border-collapse:collapse;width:100%}th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;font-variant-numeric:tabular-nums}
th{font-size:13px;color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
details{border:1px solid var(--line);border-radius:10px;margin:0 0 12px;padding:10px 14px;background:var(--card)}details>:nth-child(2){margin-top:12px}.charts+details,.chart+details{margin-top:14px}summary{cursor:pointer;font-weight:600}
.note{color:var(--bad)}
.health{margin:0 0 20px;padding:12px 16px;border:1px solid var(--line);border-radius:10px;background:var(--card)}.health h2{margin:0 0 8px}
.health dl{display:flex;flex-wrap:wrap;gap:6px 28px;margin:0}.health dt{color:var(--soft);font-size:12px}.health dd{margin:0;font-variant-numeric:tabular-nums}
.health ul{margin:10px 0 0;padding-left:18px}.watch{color:var(--c2);font-weight:600}
)";

std::string tile(std::string_view label, const std::string& value,
                 const std::string& picture = "") {
  return fmt::format("<div class=\"tile\">{}<b>{}</b><span>{}</span></div>\n", picture,
                     escape_markup(value), escape_markup(label));
}

// The course of a value without axes: whether it rose, and whether it still does.
std::string course(const Points& points, int color) {
  constexpr double kWidth = 160, kHeight = 32, kEdge = 2;
  if (points.size() < 2) return "";
  double low = points[0].second, high = low;
  for (const auto& [x, y] : points) low = std::fmin(low, y), high = std::fmax(high, y);
  const double first = points.front().first, steps = points.back().first - first;
  // Neither of all equal values nor of a run whose values are not finite.
  if (!(high > low) || !std::isfinite(high - low) || !(steps > 0)) return "";
  std::string path;
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", (x - first) / steps * kWidth,
                        kHeight - kEdge - (y - low) / (high - low) * (kHeight - 2 * kEdge));
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path "
      "class=\"line c{}\" vector-effect=\"non-scaling-stroke\" d=\"{}\"/></svg>",
      kWidth, kHeight, color, path);
}

std::string format_seconds(double seconds) {
  auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 100) return fmt::format("{} s", total);
  if (total < 6000) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

std::string tiles(const ReportData& data) {
  std::string out = "<div class=\"tiles\">\n";
  auto change = [&](std::string_view label, const Points& points, int color) {
    if (points.empty()) return;
    double from = points.front().second, to = points.back().second;
    out += tile(label,
                points.size() == 1 ? format_value(to) : fmt::format("{:.3g} → {:.3g}", from, to),
                course(points, color));
  };
  change("success, held-out", series_of(data.rows, "eval/success"), 1);
  change("reward, held-out", series_of(data.rows, "eval/reward"), 1);
  change("reward, training", moving_average(series_of(data.rows, "reward/mean")), 0);
  const int64_t steps = last_step(data.rows), updates = last_supervised_update(data.rows);
  // Before a step of reinforcement learning, or without one.
  if (steps == 0 && updates > 0) {
    for (const std::string_view kind : kRowStages) {
      const std::string what =
          kind == "sft" ? "loss" : fmt::format("loss, {}", words_of_stage(kind));
      change(what + ", held-out", series_of(data.rows, fmt::format("{}/eval_loss", kind)), 1);
      change(what + ", training",
             moving_average(series_of(data.rows, fmt::format("{}/loss", kind))), 0);
    }
    change("token accuracy, held-out", series_of(data.rows, "sft/eval_token_accuracy"), 1);
    change("accuracy of rewards, held-out", series_of(data.rows, "eval_rewards/accuracies"), 1);
    change("accuracy of the reward model, held-out",
           series_of(data.rows, "reward_model/eval_accuracy"), 1);
    out += tile("updates", fmt::format("{}", updates));
  } else {
    out += tile("steps", fmt::format("{}", steps));
  }
  if (data.rows.size() > 1) {
    // A row is written when its step ends.
    const double* first = data.rows.front().find("time/step");
    out += tile("time", format_seconds(data.rows.back().unix_seconds -
                                       data.rows.front().unix_seconds + (first ? *first : 0)));
  }
  Points speed = series_of(data.rows, "perf/tokens_per_s");
  if (!speed.empty()) {
    // A few slow steps, as of a machine that was busy, do not move a median.
    std::sort(speed.begin(), speed.end(), [](auto a, auto b) { return a.second < b.second; });
    out += tile("tokens/s, median", format_value(speed[speed.size() / 2].second));
  }
  return out + "</div>\n";
}

}  // namespace

std::string_view page_style() { return kStyle; }

std::string framed_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>{0}: Tailrace "
      "report</title>\n<style>{1}{2}</style></head>\n"
      "<body><main>\n<h1>{0}</h1><p class=\"sub\">Tailrace {3}</p>\n{4}</main></body></html>\n",
      escape_markup(title), kStyle, kWorkerStyle, version(), body);
}

std::string make_report_page(const ReportData& data) {
  std::string notes;
  for (const std::string& note : data.notes)
    notes += fmt::format("<p class=\"note\">{}</p>\n", escape_markup(note));
  std::string facts = "<dl class=\"facts\">\n";
  for (const auto& [label, value] : run_facts(data.config, data.machine, data.rows))
    facts += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", label, escape_markup(value));
  facts += "</dl>\n";
  const std::string config = fmt::format(
      "<h2>Configuration</h2>\n<details><summary>config.yaml</summary><pre>{}</pre>"
      "</details>\n",
      escape_markup(data.config));
  return framed_page(data.name, health_section(health_of(data.rows, data.config)) + facts + notes +
                                    tiles(data) + samples_section(data.samples) +
                                    worker_section(data.timeline) + curves_section(data.rows) +
                                    lengths_section(data.timeline) + metrics_tables(data.rows) +
                                    config);
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
  // The margin keeps a share of 1 off the edge.
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
  if (const int64_t count = file.value().num_damaged; count > 0)
    notes.push_back(fmt::format("{} damaged row{} of {} passed over", count, count == 1 ? "" : "s",
                                paths.timeline().string() + (count == 1 ? " is" : " are")));
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
  // Nobody knows the machine of a run of an older build.
  if (auto machine = read_file(paths.machine()))
    data.machine = machine.value().substr(0, machine.value().find('\n'));
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
