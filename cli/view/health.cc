#include "cli/view/health.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/base/join_texts.h"

namespace tailrace {
namespace {

// The change that a mean over a batch makes by itself.
constexpr double kSteadyShare = 0.1;

std::string_view arrow_between(double first, double last) {
  if (!std::isfinite(first) || !std::isfinite(last)) return "";
  if (std::abs(last - first) <= kSteadyShare * std::abs(first)) return "→";
  return last > first ? "↑" : "↓";
}

std::string text_unless_unknown(double value) {
  return std::isnan(value) ? "" : fmt::format("{:.3g}", value);
}

std::string of_limit(double length, double limit) {
  if (std::isnan(length)) return "";
  return std::isnan(limit) ? fmt::format("{:.1f}", length)
                           : fmt::format("{:.1f} of {:.0f} tokens", length, limit);
}

std::string signal_text(const HealthStep& step) {
  const double all = step.groups + (std::isnan(step.filtered) ? 0 : step.filtered);
  return std::isnan(step.signal())
             ? ""
             : fmt::format("{:.0f} of {:.0f} groups", step.signal() * all, all);
}

// The reference stands behind it where there is one.
std::string kl_text(const HealthStep& step) {
  std::string text = text_unless_unknown(step.moved());
  if (!text.empty() && !std::isnan(step.kl_penalty))
    text += fmt::format(" (penalised {:.3g})", step.kl_penalty);
  return text;
}

}  // namespace

std::string Finding::line() const {
  return fmt::format("{}: {} since step {}: {}. {}.",
                     severity == Severity::kWrong ? "warning" : "note", name_of(kind), since,
                     sentence, advice);
}

std::vector<Finding> Health::add(const MetricsRow& row) {
  if (!HealthStep::is_step(row)) return {};
  const HealthStep step(row);
  // The steps from here on were given up: after a fork or a resume they are trained again (law
  // 9.4). What was found of them goes, and the others are judged anew.
  if (!steps_.empty() && step.number <= steps_.back().number) {
    std::erase_if(steps_, [&](const HealthStep& old) { return old.number >= step.number; });
    courses_ = {};
    history_ = {};
    for (const HealthStep& kept : std::exchange(steps_, {})) judge(kept);
  }
  return judge(step);
}

std::vector<Finding> Health::judge(const HealthStep& step) {
  steps_.push_back(step);
  const HealthStep& now = steps_.back();
  const auto trained = std::ranges::find_if(
      steps_, [](const HealthStep& one) { return std::isfinite(one.entropy); });
  history_.begin(now);
  // Growth is measured from the first step that trained: one without an update has no entropy.
  const HealthView view{now, trained == steps_.end() ? now : *trained, settings_, history_};
  std::vector<Finding> found;
  for (const HealthRule& rule : health_rules()) {
    Course& course = courses_[static_cast<size_t>(rule.kind)];
    // A rule has to hold for several steps in a row: single steps of small batches say anything.
    course.streak = rule.holds(view) ? course.streak + 1 : 0;
    if (course.streak < rule.steps) continue;
    const bool is_new = !course.found;
    course.found = true;
    // The streak began there; steps need not be numbered without gaps.
    const int64_t since = steps_[steps_.size() - static_cast<size_t>(course.streak)].number;
    course.finding = {.kind = rule.kind,
                      .severity = rule.severity,
                      .about = rule.about,
                      .since = since,
                      .until = now.number,
                      .pays_all = rule.kind == Ailment::kConstantReward && now.reward_min > 0,
                      .sentence = rule.sentence(view),
                      .advice = rule.advice(view)};
    // A larger limit mends nothing of a policy that says nothing any more.
    if (const auto& wreck = history_.wreck();
        is_symptom(rule.kind) && wreck && wreck->from <= since && since - wreck->to <= kSoon) {
      course.finding.sentence += fmt::format(", since {}", wreck_text(*wreck));
      course.finding.advice = wreck_advice(view);
    }
    if (is_new) found.push_back(course.finding);
  }
  history_.end(steps_);
  return found;
}

std::vector<Finding> Health::findings() const {
  std::vector<Finding> all;
  for (const Course& course : courses_)
    if (course.found) all.push_back(course.finding);
  // Rules look at a different number of steps: what begins with the fall may be told to begin a
  // little before it.
  constexpr int64_t kTogether = 3;
  const Course& fall = courses_[static_cast<size_t>(Ailment::kRewardFell)];
  const auto since = [&](const Finding& one) {
    const int64_t before = fall.finding.since - one.since;
    return fall.found && is_symptom(one.kind) && before > 0 && before <= kTogether
               ? fall.finding.since
               : one.since;
  };
  // A reward that is paid to every sample teaches nobody to act: it stands before the actions that
  // cannot be read since then.
  const auto order = [&](const Finding& one) {
    return std::tuple(-static_cast<int>(one.severity), since(one),
                      one.pays_all ? Ailment::kActionsCut : one.kind, !one.pays_all);
  };
  std::ranges::stable_sort(all, {}, order);
  return all;
}

std::vector<Finding> Health::present() const {
  std::vector<Finding> all = findings();
  std::erase_if(all, [this](const Finding& one) { return one.until < steps_.back().number; });
  return all;
}

std::optional<Finding> Health::verdict() const {
  const std::vector<Finding> now = present();
  const bool is_solved =
      std::ranges::any_of(now, [](const Finding& one) { return one.kind == Ailment::kSolved; });
  for (const Finding& one : now)
    // A solved task has no signal and little entropy by itself: these are then its signs and no
    // ailment.
    if (!is_solved || !is_symptom(one.kind)) return one;
  for (const Finding& one : findings())
    if (!is_symptom(one.kind)) return one;
  return std::nullopt;
}

Severity Health::severity_of(HealthNumber number) const {
  Severity worst = Severity::kGood;
  for (const Finding& finding : present())
    if (finding.about == number) worst = std::max(worst, finding.severity);
  return worst;
}

std::vector<HealthFigure> Health::figures() const {
  if (steps_.empty()) return {};
  const HealthStep& first = steps_.front();
  const HealthStep& last = steps_.back();
  const auto percent = [](double share) {
    return std::isnan(share) ? "" : fmt::format("{:.0f} %", share * 100);
  };
  const auto figure = [&](std::string_view name, std::string value, HealthNumber number,
                          double before, double now) {
    const std::string_view course = value.empty() ? "" : arrow_between(before, now);
    const Severity severity = severity_of(number);
    // An unknown figure is neither well nor unwell.
    const bool is_unknown = value.empty() && severity == Severity::kGood;
    return HealthFigure{name, std::move(value), is_unknown ? "unknown" : name_of(severity), course};
  };
  using enum HealthNumber;
  return {
      figure("signal", signal_text(last), kSignal, first.signal(), last.signal()),
      figure("entropy", text_unless_unknown(last.entropy), kEntropy, first.entropy, last.entropy),
      // One update clips nothing, whatever it does.
      figure("clipped", text_unless_unknown(last.updates > 1 ? last.clip : kUnknown), kClip,
             first.clip, last.clip),
      figure("KL", kl_text(last), kKl, first.moved(), last.moved()),
      figure("length", of_limit(last.length, settings_.episode_tokens), kLength, first.length,
             last.length),
      figure("truncated", percent(last.truncated), kTruncation, first.truncated, last.truncated)};
}

std::string Health::line() const {
  std::vector<std::string> parts;
  for (const HealthFigure& figure : figures()) {
    std::string part = figure.value.empty()
                           ? fmt::format("{} {}", figure.name, figure.word)
                           : fmt::format("{} {} {}", figure.name, figure.value, figure.word);
    if (!figure.course.empty()) part += fmt::format(" {}", figure.course);
    parts.push_back(std::move(part));
  }
  return join_texts(parts, ", ");
}

Health health_of(std::span<const MetricsRow> rows, const std::string& config) {
  Health health(health_settings(config));
  for (const MetricsRow& row : rows) health.add(row);
  return health;
}

Health health_of(const RunPaths& paths) {
  const auto rows = read_metrics(paths.metrics());
  const auto config = read_file(paths.config());
  return health_of(rows ? rows.value() : std::vector<MetricsRow>(), config ? config.value() : "");
}

}  // namespace tailrace
