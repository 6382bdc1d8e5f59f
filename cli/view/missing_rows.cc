#include "cli/view/missing_rows.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "core/base/join_texts.h"
#include "core/run/stage_row.h"

namespace tailrace {
namespace {

void name_missing(const std::vector<int64_t>& missing, std::string_view one, std::string_view many,
                  std::vector<std::string>& texts) {
  if (missing.size() == 1) {
    texts.push_back(fmt::format("{} {}", one, missing.front()));
  } else if (!missing.empty()) {
    texts.push_back(
        fmt::format("{} {} from {} to {}", missing.size(), many, missing.front(), missing.back()));
  }
}

// A training on rows, by what was written of it.
struct Training {
  std::set<int64_t> done;
  int64_t total = 0;
  std::string_view kind;
};

// Rows come every so many updates, and after the last one.
std::vector<int64_t> missing_updates(const std::set<int64_t>& done, int64_t total) {
  std::vector<int64_t> missing;
  if (done.empty()) return missing;
  int64_t interval = *done.begin(), before = 0;
  for (const int64_t update : done) {
    // The last one comes sooner than the interval.
    if (update != total || before == 0) interval = std::min(interval, update - before);
    before = update;
  }
  for (int64_t update = interval; interval > 0 && update < total; update += interval) {
    if (!done.contains(update)) missing.push_back(update);
  }
  if (total > 0 && !done.contains(total)) missing.push_back(total);
  return missing;
}

}  // namespace

std::vector<std::string> missing_rows(std::span<const MetricsRow> rows, ExpectedRows expected) {
  std::map<int64_t, Training> trainings;  // by stage
  std::set<int64_t> steps, evaluations;
  for (const MetricsRow& row : rows) {
    if (const std::optional<StageRow> update = stage_row(row)) {
      Training& training = trainings[update->stage];
      // A measurement between two rows keeps no interval.
      if (update->loss != nullptr || update->eval_loss == nullptr) training.done.insert(row.step);
      training.total = std::max(training.total, update->updates);
      training.kind = update->kind;
    } else {
      (row.find("eval/episodes") != nullptr ? evaluations : steps).insert(row.step);
    }
  }
  // A row of a step says that it was published, whatever the caller knows.
  if (!steps.empty()) expected.published = std::max(expected.published, *steps.rbegin());
  std::vector<std::string> texts;

  // Until a version is there a training on rows may go on, or be done again.
  if (expected.published > 0) {
    if (expected.warm_up && trainings.empty()) texts.push_back("the warm-up");
    for (const auto& [stage, training] : trainings)
      name_missing(missing_updates(training.done, training.total),
                   fmt::format("{} update", words_of_stage(training.kind)),
                   fmt::format("points of the {} training, updates", words_of_stage(training.kind)),
                   texts);
  }
  std::vector<int64_t> missing;
  for (int64_t step = 1; step <= expected.published; ++step) {
    if (!steps.contains(step)) missing.push_back(step);
  }
  name_missing(missing, "step", "steps", texts);

  // Whether the config of an earlier launch asked for them is not known.
  missing.clear();
  // The evaluation of a version is complete before the next is trained, and reported soon after.
  const int64_t end = expected.is_over ? expected.published + 1 : expected.published - 1;
  for (int64_t version = 0; expected.evaluates && version < end; ++version) {
    const bool due = version == 0 || version == expected.published ||
                     (expected.interval_steps > 0 && version % expected.interval_steps == 0);
    if (due && !evaluations.contains(version)) missing.push_back(version);
  }
  name_missing(missing, "the evaluation that the config asks for of version",
               "evaluations that the config asks for, of versions", texts);
  return texts;
}

std::string warning_of_missing_rows(const RunPaths& paths, ExpectedRows expected) {
  expected.published = std::max(expected.published, newest_checkpoint(paths).value_or(0));
  std::vector<MetricsRow> rows;
  if (std::filesystem::exists(paths.metrics())) {
    auto read = read_metrics(paths.metrics());
    if (!read) return fmt::format("warning: {}\n", read.failure().message);
    rows = std::move(read).value();
  }
  const auto texts = missing_rows(rows, expected);
  if (texts.empty()) return "";
  return fmt::format("warning: {} has no rows of {}: figures and reports lack them\n",
                     paths.metrics().string(), join_texts(texts, ", of "));
}

}  // namespace tailrace
