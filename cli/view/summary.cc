#include "cli/view/summary.h"

#include <optional>

#include <fmt/format.h>

#include "cli/view/health.h"
#include "cli/view/signal.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

struct MetricChange {
  double first = 0, last = 0;
  const MetricsRow* last_row = nullptr;  // null: in no row
};

MetricChange change_of(std::span<const MetricsRow> rows, std::string_view name) {
  MetricChange change;
  for (const MetricsRow& row : rows) {
    const double* value = row.find(name);
    if (value == nullptr) continue;
    // The first row of held-out metrics is from before the first step.
    if (change.last_row == nullptr) change.first = *value;
    change.last = *value;
    change.last_row = &row;
  }
  return change;
}

}  // namespace

std::string run_summary(std::span<const MetricsRow> rows, const std::string& name,
                        std::chrono::seconds elapsed, const std::string& directory,
                        const std::string& config) {
  std::string end = fmt::format("{} s, run: {}", elapsed.count(), directory);
  if (const std::string excluded = exclusions_of_run(rows); !excluded.empty())
    end += "\n" + excluded;
  if (const std::optional<Finding> verdict = health_of(rows, config).verdict())
    end += "\n" + verdict->line();
  // Held-out before training, success before reward: what a person wants to know first.
  for (const auto& [metric, label] :
       {std::pair{"eval/success", "success"}, {"eval/reward", "reward"}}) {
    const MetricChange change = change_of(rows, metric);
    if (change.last_row == nullptr) continue;
    const double* episodes = change.last_row->find("eval/episodes");
    return fmt::format("{}: {} {:.2f} -> {:.2f} (held-out, {} episodes), {}", name, label,
                       change.first, change.last, episodes == nullptr ? 0 : *episodes, end);
  }
  const MetricChange change = change_of(rows, "reward/mean");
  // Behind trainings on rows it is the rewards that count; of several the last one.
  for (const auto& [loss_name, accuracy_name, label] :
       {std::tuple{"distill/eval_loss", "", ""},
        {"preference/eval_loss", "eval_rewards/accuracies", "accuracy"},
        {"sft/eval_loss", "sft/eval_token_accuracy", "token accuracy"},
        {"reward_model/eval_loss", "reward_model/eval_accuracy", "accuracy"}}) {
    const MetricChange loss = change_of(rows, loss_name), accuracy = change_of(rows, accuracy_name);
    if (change.last_row != nullptr || loss.last_row == nullptr) continue;
    // Unpaired preferences and distillation have none.
    const std::string rates =
        accuracy.last_row == nullptr
            ? ""
            : fmt::format(", {} {:.2f} -> {:.2f}", label, accuracy.first, accuracy.last);
    return fmt::format("{}: loss {:.3f} -> {:.3f}{} (held-out), {}", name, loss.first, loss.last,
                       rates, end);
  }
  if (change.last_row == nullptr) return fmt::format("{}: done, {}", name, end);
  return fmt::format("{}: reward {:.2f} -> {:.2f} (training), {}", name, change.first, change.last,
                     end);
}

std::string run_summary(const RunPaths& paths, const std::string& name,
                        std::chrono::seconds elapsed) {
  const auto rows = read_metrics(paths.metrics());
  const auto config = read_file(paths.config());
  return run_summary(rows ? rows.value() : std::vector<MetricsRow>(), name, elapsed,
                     paths.root.string(), config ? config.value() : "");
}

}  // namespace tailrace
