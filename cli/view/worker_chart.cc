#include "cli/view/worker_chart.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/view/chart.h"
#include "cli/view/worker_use.h"
#include "core/base/time.h"

namespace tailrace {
namespace {

constexpr int kBins = 320;
constexpr int kZoomSteps = 4;     // of the second chart
constexpr size_t kMaxLanes = 48;  // more would be a wall: the table has all of them
constexpr int kLaneHeight = 18, kLanePitch = 24, kTop = 30, kLeft = 96, kWidth = 1060;

std::string percent(double share) {
  return share <= 0 ? "" : (share < 0.005 ? "&lt;1 %" : fmt::format("{:.0f} %", 100 * share));
}

// One path for each use: a rectangle for each run of bins that have the same share of it at the
// same height, so that a steady worker costs a rectangle and not one a bin.
std::string draw_lane(const WorkerUse& worker, int top) {
  const double width = static_cast<double>(kWidth - kLeft) / kBins;
  std::string out;
  for (size_t use = 0; use < kNumUses; ++use) {
    std::string path;
    for (size_t i = 0; i < worker.bins.size();) {
      const auto place = [&](size_t bin) {  // from the lane's foot, in pixels
        double below = 0;
        for (size_t other = 0; other < use; ++other) below += worker.bins[bin][other];
        // Tenths of a pixel are what the page has: bins that differ by less are one rectangle.
        const auto pixels = [](double share) { return std::round(share * kLaneHeight * 10) / 10; };
        return std::pair(pixels(below), pixels(below + worker.bins[bin][use]));
      };
      const auto [low, high] = place(i);
      size_t end = i + 1;
      while (end < worker.bins.size() && place(end) == std::pair(low, high)) ++end;
      if (high > low) {
        path += fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z",
                            kLeft + static_cast<double>(i) * width, top + kLaneHeight - high,
                            static_cast<double>(end - i) * width, high - low,
                            static_cast<double>(end - i) * width);
      }
      i = end;
    }
    if (!path.empty()) out += fmt::format("<path class=\"u{}\" d=\"{}\"/>\n", use, path);
  }
  return out;
}

std::string draw_time(const RunUse& use, int bottom) {
  const double begin = seconds_of(use.begin), end = seconds_of(use.end);
  const auto x = [&](double at) { return kLeft + (at - begin) / (end - begin) * (kWidth - kLeft); };
  std::string out;
  for (const double tick : round_ticks(begin, end, 8)) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(tick),
                       bottom + 16, format_value(tick));
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">seconds</text>\n", kWidth,
                     bottom + 32);
  // The lines of many steps would be a grey field.
  const size_t every = 1 + use.steps.size() / 24;
  constexpr double kNumberWidth = 20;
  double next = 0;  // where there is room for a number
  for (size_t i = 0; i < use.steps.size(); i += every) {
    const double at = x(seconds_of(use.steps[i].first));
    out +=
        fmt::format("<line class=\"step\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n",
                    at, kTop - 6, bottom);
    if (at < next) continue;
    next = at + kNumberWidth;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at,
                       kTop - 10, use.steps[i].second);
  }
  return out;
}

std::string draw(const RunUse& use, std::string_view title) {
  const size_t lanes = std::min(use.workers.size(), kMaxLanes);
  const int bottom = kTop + static_cast<int>(lanes) * kLanePitch;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">\n",
      kWidth + 14, bottom + 38, title);
  for (size_t i = 0; i < lanes; ++i) {
    const int top = kTop + static_cast<int>(i) * kLanePitch;
    std::string name = use.workers[i].worker;
    if (name.size() > 13) name = name.substr(0, 12) + "…";
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                       top + 13, escape_markup(name));
    out += draw_lane(use.workers[i], top);
  }
  return out + draw_time(use, bottom) + "</svg>\n";
}

std::vector<size_t> uses_of(const RunUse& use) {
  std::vector<size_t> found;
  for (size_t i = 0; i < kNumUses; ++i) {
    if (std::ranges::any_of(use.workers, [&](const auto& w) { return w.seconds[i] > 0; }))
      found.push_back(i);
  }
  return found;
}

std::string legend(const RunUse& use) {
  std::string out = "<p class=\"legend\">";
  for (const size_t i : uses_of(use))
    out += fmt::format(
        "<span><svg viewBox=\"0 0 10 10\"><rect class=\"u{}\" width=\"10\" "
        "height=\"10\"/></svg>{}</span>",
        i, kEnumNames<Use>[i]);
  return out + "</p>\n";
}

// "west, gpu-7"; nothing of one beside the scheduler.
std::string place_of(const WorkerUse& worker) {
  if (worker.cluster.empty() || worker.host.empty()) return worker.cluster + worker.host;
  return fmt::format("{}, {}", worker.cluster, worker.host);
}

// `place`: absent where the table has no column of places.
std::string table_row(std::string_view name, const std::optional<std::string>& place, int64_t slots,
                      int64_t places, const UseShares& shares, const std::vector<size_t>& uses) {
  double idle = 0;
  for (size_t i = 0; i < kNumUses; ++i) {
    if (!is_work(static_cast<Use>(i))) idle += shares[i];
  }
  std::string out = fmt::format("<tr><td>{}</td>", escape_markup(name));
  if (place) out += fmt::format("<td>{}</td>", escape_markup(*place));
  out += fmt::format("<td>{}</td><td>{}</td><td>{}</td>", slots, places, percent(idle));
  for (const size_t i : uses) out += fmt::format("<td>{}</td>", percent(shares[i]));
  return out + "</tr>\n";
}

std::string table(const RunUse& use) {
  const std::vector<size_t> uses = uses_of(use);
  const bool has_places =
      std::ranges::any_of(use.workers, [](const auto& w) { return !place_of(w).empty(); });
  std::string out = fmt::format(
      "<div class=\"wide\"><table><tr><th>worker</th>{}<th>slots</th><th>used at "
      "once</th><th>idle</th>",
      has_places ? "<th>where</th>" : "");
  for (const size_t i : uses) out += fmt::format("<th>{}</th>", kEnumNames<Use>[i]);
  out += "</tr>\n";
  for (size_t role = 0; role < kEnumNames<Role>.size(); ++role) {
    int64_t workers = 0, slots = 0, places = 0;
    for (const WorkerUse& worker : use.workers) {
      if (static_cast<size_t>(worker.role) != role) continue;
      ++workers, slots += worker.slots, places += worker.places;
    }
    if (workers > 1)
      out += table_row(fmt::format("all {} ({})", kEnumNames<Role>[role], workers),
                       has_places ? std::optional<std::string>("") : std::nullopt, slots, places,
                       shares_of(use, static_cast<Role>(role)), uses);
    for (const WorkerUse& worker : use.workers) {
      if (static_cast<size_t>(worker.role) != role) continue;
      UseShares shares = worker.seconds;
      double all = 0;
      for (const double part : shares) all += part;
      for (double& part : shares) part = all > 0 ? part / all : 0;
      out += table_row(worker.worker, has_places ? std::optional(place_of(worker)) : std::nullopt,
                       worker.slots, worker.places, shares, uses);
    }
  }
  return out + "</table></div>\n";
}

// Before it all but the trainer wait for version 0, and a long warm-up would be all that is told.
Time first_sample(std::span<const TimelineRow> rows) {
  Time first = Time::max();
  for (const TimelineRow& row : rows)
    if (row.what == TimelineWhat::kGenerate) first = std::min(first, row.from);
  return first;
}

// A tile for each role: who waited, and mostly for what.
std::string headline(const RunUse& use) {
  std::string out;
  for (const Role role : {Role::kRollout, Role::kTrainer, Role::kReward}) {
    const UseShares shares = shares_of(use, role);
    double idle = 0;
    size_t most = kNumUses;
    for (size_t i = 0; i < kNumUses; ++i) {
      if (is_work(static_cast<Use>(i)) || shares[i] <= 0) continue;
      idle += shares[i];
      if (most == kNumUses || shares[i] > shares[most]) most = i;
    }
    if (std::ranges::none_of(use.workers, [&](const auto& w) { return w.role == role; })) continue;
    std::string why;
    if (most < kNumUses)
      why = fmt::format(", mostly {} ({})", kEnumNames<Use>[most], percent(shares[most]));
    out += fmt::format("<div class=\"tile\"><b>{} idle</b><span>{}{}</span></div>\n",
                       idle > 0 ? percent(idle) : "0 %", name_of(role), why);
  }
  return "<div class=\"tiles\">\n" + out + "</div>\n";
}

}  // namespace

// Waits have the colour of what they wait for, faint.
const std::string_view kWorkerStyle = R"(
.u0,.u7{fill:#0969da}.u1,.u9{fill:#1b9aaa}.u2,.u8{fill:#1a7f37}.u3,.u10{fill:#e36209}.u4,.u11{fill:#8a6d3b}.u5,.u13{fill:#d4a72c}.u6,.u12{fill:#8250df}
.u7,.u8,.u9,.u10,.u11,.u12,.u13{opacity:.28}.u14{fill:#cf222e}.u15{fill:#57606a;opacity:.55}.u16{fill:#8c959f;opacity:.35}
.step{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3;opacity:.7}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--soft);font-size:13px;margin:10px 0}.legend span{display:flex;align-items:center;gap:6px}.legend svg{width:12px;height:12px}
.wide{overflow-x:auto}.wide td,.wide th{white-space:nowrap}
)";

std::string worker_section(std::span<const TimelineRow> rows) {
  Time end{};
  std::vector<Time> steps;
  for (const TimelineRow& row : rows) {
    end = std::max(end, row.at);
    if (row.what == TimelineWhat::kStep) steps.push_back(row.at);
  }
  if (end <= Time{}) return "";
  const RunUse whole = use_of_workers(rows, Time{}, end, kBins);
  if (whole.workers.empty()) return "";
  std::string out =
      "<h2>Workers</h2>\n<p class=\"sub\">What each did when: a full lane is as many leases as the "
      "worker ever held at once. Waits have the colour of what they wait for. Numbers above are "
      "steps, where they were published. Idle shares count from the first sample on.</p>\n";
  if (whole.workers.size() > kMaxLanes)
    out += fmt::format("<p class=\"sub\">The first {} of {} workers; the table has all.</p>\n",
                       kMaxLanes, whole.workers.size());
  if (whole.folded)
    out +=
        "<p class=\"sub\">Some steps had more leases than scheduler.timeline_rows: of those "
        "the mean is shown.</p>\n";
  if (const Time begin = first_sample(rows); begin < end)
    out += headline(use_of_workers(rows, begin, end, 1));
  out += legend(whole);
  out += fmt::format("<div class=\"chart\">{}</div>\n", draw(whole, "workers over the run"));
  // A run that is not longer would have the same chart.
  if (steps.size() > static_cast<size_t>(2 * kZoomSteps)) {
    const Time from = steps[steps.size() - 1 - kZoomSteps];
    if (from < steps.back())
      out += fmt::format(
          "<h3>The last {} steps</h3>\n<div class=\"chart\">{}</div>\n", kZoomSteps,
          draw(use_of_workers(rows, from, steps.back(), kBins), "workers over the last steps"));
  }
  return out + "<details><summary>Shares of each worker's time</summary>\n" + table(whole) +
         "</details>\n";
}

}  // namespace tailrace
