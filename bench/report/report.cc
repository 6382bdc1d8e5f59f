#include "bench/report/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "core/base/machine.h"
#include "core/base/version.h"
#include "core/weights/manifest.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMetricWidth = 24;

// Four digits that mean something, and none behind the point of a large number.
std::string readable(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  if (size >= 1 || size == 0) return fmt::format("{:.2f}", value);
  return fmt::format("{:.4g}", value);
}

std::string text_of(const Setting& setting) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); }, setting);
}

}  // namespace

Spread spread(std::vector<double> values) {
  TR_CHECK(!values.empty(), "a spread of no values");
  std::ranges::sort(values);
  const size_t n = values.size();
  return {.median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
          .min = values.front(),
          .max = values.back(),
          .runs = static_cast<int64_t>(n)};
}

double Stopwatch::now() const {
  timespec time{};
  ::clock_gettime(clock_, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Stopwatch::lap() {
  const double before = last_;
  last_ = now();
  return last_ - before;
}

double peak_memory_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1.024e-3 * static_cast<double>(usage.ru_maxrss);
}

Heading make_heading(std::string bench, Settings settings, int threads) {
  return {.bench = std::move(bench),
          .version = std::string(version()),
          .settings = std::move(settings),
          .cpu = cpu_facts().name,
          .cores = num_usable_cores(),
          .numerics = numerics_class(),
          .threads = threads};
}

std::string to_json(const Heading& heading, const Row& row) {
  Json settings = Json::object();
  for (const auto& [name, value] : heading.settings)
    std::visit([&, &key = name](const auto& v) { settings[key] = v; }, value);
  // Every row has these keys, so that a table of them needs no cases.
  Json line = {{"bench", heading.bench},
               {"system", "tailrace"},
               {"version", heading.version},
               {"case", row.name},
               {"metric", row.metric},
               {"unit", row.unit},
               {"median", row.value.median},
               {"min", row.value.min},
               {"max", row.value.max},
               {"runs", row.value.runs},
               {"limit", row.limit ? Json(*row.limit) : Json()},
               {"settings", settings},
               {"machine",
                {{"device", heading.device},
                 {"cpu", heading.cpu},
                 {"cores", heading.cores},
                 {"numerics", heading.numerics},
                 {"threads", heading.threads > 0 ? Json(heading.threads) : Json()}}}};
  for (const auto& [name, value] : row.facts)
    std::visit([&, &key = name](const auto& v) { line[key] = v; }, value);
  return line.dump();
}

Report::Report(Heading heading, Form form, std::FILE* out)
    : heading_(std::move(heading)), form_(form), out_(out) {
  if (form_ == Form::kJson) return;
  fmt::print(out_, "{}: tailrace {} on {}, {} cores{}, {}\n", heading_.bench, heading_.version,
             heading_.cpu.empty() ? "an unnamed CPU" : heading_.cpu, heading_.cores,
             heading_.threads > 0 ? fmt::format(", {} threads", heading_.threads) : "",
             heading_.numerics);
  std::string line;
  for (const auto& [name, value] : heading_.settings)
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, text_of(value));
  if (!line.empty()) fmt::print(out_, "{}\n", line);
  fmt::print(out_, "\n{:<{}} {:>11} {:>11} {:>11}  {:<10} {:>5} {:>9}\n", "", kMetricWidth,
             "median", "min", "max", "unit", "runs", "of limit");
}

void Report::add(const Row& row) {
  if (form_ == Form::kJson) {
    fmt::print(out_, "{}\n", to_json(heading_, row));
  } else {
    if (row.name != case_) fmt::print(out_, "{}\n", row.name);
    case_ = row.name;
    fmt::print(out_, "  {:<{}} {:>11} {:>11} {:>11}  {:<10} {:>5} {:>9}\n", row.metric,
               kMetricWidth - 2, readable(row.value.median), readable(row.value.min),
               readable(row.value.max), row.unit, row.value.runs,
               row.limit ? fmt::format("{:.0f} %", 100 * row.value.median / *row.limit) : "");
  }
  // At once: a bench may run for minutes, and its reader may be a pipe.
  std::fflush(out_);
}

void Report::add(const std::string& name, const std::string& metric, const std::string& unit,
                 std::vector<double> values, std::optional<double> limit) {
  add(Row{name, metric, unit, spread(std::move(values)), limit, {}});
}

void Report::note(const std::string& text) {
  if (form_ == Form::kJson) return;
  fmt::print(out_, "  -> {}\n", text);
  std::fflush(out_);
}

}  // namespace tailrace
