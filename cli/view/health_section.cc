#include "cli/view/health_section.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/view/chart.h"

namespace tailrace {
namespace {

std::string_view class_of(std::string_view word) {
  return word == name_of(Severity::kWrong)   ? "bad"
         : word == name_of(Severity::kWatch) ? "watch"
         : word == name_of(Severity::kGood)  ? "good"
                                             : "unknown";
}

// When it held: to the end, or for some steps that lie behind.
std::string span_of(const Finding& finding, bool is_present) {
  if (is_present) return fmt::format("since step {}", finding.since);
  if (finding.since == finding.until) return fmt::format("in step {}", finding.since);
  return fmt::format("in steps {} to {}", finding.since, finding.until);
}

}  // namespace

std::string health_section(const Health& health) {
  const std::vector<HealthFigure> figures = health.figures();
  if (figures.empty()) return "";
  std::string out = "<section class=\"health\"><h2>Health</h2>\n<dl>\n";
  for (const HealthFigure& figure : figures)
    out += fmt::format("<div><dt>{}</dt><dd>{} <span class=\"{}\">{}</span> {}</dd></div>\n",
                       figure.name, escape_markup(figure.value), class_of(figure.word), figure.word,
                       figure.course);
  out += "</dl>\n";
  const std::vector<Finding> all = health.findings(), present = health.present();
  if (!all.empty()) out += "<ul>\n";
  for (const Finding& finding : all) {
    const bool is_present =
        std::ranges::any_of(present, [&](const Finding& one) { return one.kind == finding.kind; });
    const std::string_view word = name_of(finding.severity);
    out += fmt::format("<li><span class=\"{}\">{}</span> {}: {}. {}.</li>\n", class_of(word),
                       name_of(finding.kind), span_of(finding, is_present),
                       escape_markup(finding.sentence), escape_markup(finding.advice));
  }
  if (!all.empty()) out += "</ul>\n";
  return out + "</section>\n";
}

}  // namespace tailrace
