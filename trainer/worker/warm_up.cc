#include "trainer/worker/warm_up.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "trainer/worker/saved_state.h"

namespace tailrace {
namespace {

constexpr int64_t kProgressReports = 50;  // of a whole warm-up

}  // namespace

WarmUp::WarmUp(const TrainerWorkerConfig& config, PolicyTrainer& trainer, const Digest& base,
               Log& log, Owner owner)
    : config_(config),
      trainer_(trainer),
      base_(base),
      log_(log),
      owner_(std::move(owner)),
      saved_(config.run.warm_up(), config.tokenizer_dir, /*keep_last=*/1) {}

MetricList WarmUp::run() {
  const SftOptions& sft = config_.sft;
  const auto rows = [&](const std::string& file) {
    return file.empty() ? std::vector<SftRow>()
                        : read_sft_rows(file, config_.model.num_ids(), config_.max_sequence_tokens);
  };
  SftTask task(trainer_, sft, rows(sft.data), rows(sft.eval_data), mix({config_.seed, kSftStream}));
  resume(task);
  const int64_t interval = std::max<int64_t>(1, task.total_updates() / kProgressReports);
  MetricList last, measured;
  if (task.updates_done() == 0 && task.evaluation_is_due()) {
    measured = evaluate(task);
    report(task, measured);
  }
  while (std::optional<MetricList> metrics = task.update()) {
    last = std::move(*metrics);
    const int64_t done = task.updates_done();
    const bool is_last = done == task.total_updates();
    MetricList row = done % interval == 0 || is_last ? last : MetricList();
    if (task.evaluation_is_due()) {
      measured = evaluate(task);
      row.insert(row.end(), measured.begin(), measured.end());
    }
    if (!row.empty()) report(task, row);
    const bool is_due = sft.checkpoint_updates > 0 && done % sft.checkpoint_updates == 0;
    if (is_due && !is_last) save(task);
    if (!owner_.stops()) continue;
    // The person may go on.
    if (!is_last) save(task);
    break;
  }
  last.insert(last.end(), measured.begin(), measured.end());
  return last;
}

void WarmUp::resume(RowTask& task) {
  const auto loaded =
      saved_.load_latest(config_.model, trainer_.parameters(), trainer_.optimizer());
  if (!loaded) return;
  tell_passed_over(log_, *loaded, "update");
  require_saved_base(loaded->state, base_, config_.model_dir);
  trainer_.weights_changed();
  // Batches are a function of the seed, so the updates that are saved are passed over by number.
  task.skip(loaded->state.step);
  log_.info("resumed update={} checkpoint={}", task.updates_done(), loaded->path.string());
}

MetricList WarmUp::evaluate(RowTask& task) {
  MetricList measured = task.evaluate();
  log_.info("update={} of {} eval_loss={:.4f} token_accuracy={:.4f}", task.updates_done(),
            task.total_updates(), measured[0].second, measured[1].second);
  return measured;
}

void WarmUp::report(const RowTask& task, const MetricList& metrics) {
  owner_.report({"sft", task.updates_done(), task.total_updates(), metrics});
}

void WarmUp::save(const RowTask& task) {
  const auto saved = saved_.save({.step = task.updates_done(),
                                  .version = 0,
                                  .updates = task.updates_done(),
                                  .horizon = task.total_updates(),
                                  .digest = root_of(trainer_.parameters()),
                                  .base = base_},
                                 written_as(config_.model, config_.compute.weights),
                                 trainer_.parameters(), trainer_.optimizer());
  // It would cost what a kill costs without it.
  if (!saved)
    log_.warning("update={} is not saved: {}", task.updates_done(), saved.failure().message);
}

}  // namespace tailrace
