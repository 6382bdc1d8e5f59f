#include "cli/view/samples_section.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "cli/view/chart.h"
#include "cli/view/segment_tree.h"

namespace tailrace {
namespace {

constexpr size_t kShown = 4;  // of a step

std::string card(const Sample& sample) {
  std::string head;
  if (sample.success)
    head += fmt::format("<span class=\"{}\">{}</span>", *sample.success > 0 ? "good" : "bad",
                        *sample.success > 0 ? "success" : "no success");
  // On a narrow screen the columns are one.
  head += fmt::format("<span>step {}</span>", sample.step);
  if (!sample.dataset.empty())
    head += fmt::format("<span>{}</span>", escape_markup(sample.dataset));
  if (sample.reward) head += fmt::format("<span>reward {}</span>", format_value(*sample.reward));
  std::string text;
  std::vector<SegmentShape> shapes;
  for (const Sample::Segment& segment : sample.segments)
    shapes.push_back({segment.parent, segment.parent_tokens, segment.roles});
  const std::vector<SegmentLine> lines = describe_segments(shapes);
  for (size_t i = 0; i < sample.segments.size(); ++i) {
    if (sample.segments.size() > 1)
      text += fmt::format("{}<b>{}</b>\n", i > 0 ? "\n\n" : "", lines[i].text);
    for (const SampleText& piece : sample.segments[i].text)
      text += piece.role == TokenRole::kSampled
                  ? fmt::format("<mark>{}</mark>", escape_markup(piece.text))
                  : escape_markup(piece.text);
  }
  std::string foot;
  // The name is the argument of `tailrace status --sample`.
  if (!sample.name.empty()) foot = fmt::format("<footer>{}</footer>", escape_markup(sample.name));
  return fmt::format("<div class=\"sample\"><header>{}</header><pre>{}</pre>{}</div>\n", head, text,
                     foot);
}

using Shown = std::vector<const Sample*>;

Shown of_step(std::span<const Sample> samples, int64_t step) {
  Shown shown;
  for (const Sample& sample : samples)
    if (sample.step == step && shown.size() < kShown) shown.push_back(&sample);
  return shown;
}

// Held-out prompts come again with every evaluation, those of training do not.
std::string prompt_of(const Sample& sample) {
  if (sample.segments.empty() || sample.segments[0].text.empty()) return "";
  const SampleText& first = sample.segments[0].text[0];
  return first.role == TokenRole::kPrompt ? first.text : "";
}

// Samples with the prompt of one before stand in its place, the others in what is left.
Shown beside(const Shown& before, Shown after) {
  // Each sample of before keeps its place, so that the two columns of the page compare the same
  // prompt.
  Shown placed(std::max(before.size(), after.size()), nullptr);
  for (size_t i = 0; i < before.size(); ++i) {
    const auto same = std::ranges::find_if(
        after, [&](const Sample* sample) { return prompt_of(*sample) == prompt_of(*before[i]); });
    if (same == after.end()) continue;
    placed[i] = *same;
    after.erase(same);
  }
  for (const Sample* sample : after) *std::ranges::find(placed, nullptr) = sample;
  return placed;
}

}  // namespace

std::string samples_section(std::span<const Sample> samples) {
  if (samples.empty()) return "";
  const auto [first, last] = std::ranges::minmax_element(samples, {}, &Sample::step);
  std::string out =
      "<h2>Samples</h2><p class=\"sub\">What the policy wrote is marked; the rest is the "
      "environment's.</p>\n";
  const Shown before = of_step(samples, first->step);
  if (first->step == last->step) {
    out += fmt::format("<h3>Step {}</h3>\n<div class=\"pair\">\n", first->step);
    for (const Sample* sample : before) out += card(*sample);
    return out + "</div>\n";
  }
  out += fmt::format(
      "<div class=\"pair\">\n<h3>Before: step {}</h3>\n<h3>After: step {}</h3>\n</div>\n"
      "<div class=\"pair\">\n",
      first->step, last->step);
  const Shown after = beside(before, of_step(samples, last->step));
  for (size_t i = 0; i < after.size(); ++i) {
    out += i < before.size() ? card(*before[i]) : "<div></div>\n";
    out += after[i] != nullptr ? card(*after[i]) : "<div></div>\n";
  }
  return out + "</div>\n";
}

}  // namespace tailrace
