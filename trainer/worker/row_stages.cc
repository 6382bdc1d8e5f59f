#include "trainer/worker/row_stages.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/base/random.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_files.h"
#include "core/model/reward_head.h"
#include "core/run/unfinished_folder.h"
#include "core/text/tokenizer.h"
#include "trainer/preference.h"
#include "trainer/preference_rows.h"
#include "trainer/reward_training.h"
#include "trainer/sft.h"
#include "trainer/worker/saved_state.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kProgressReports = 50;  // of a whole stage

MetricList joined(MetricList first, const MetricList& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Nothing: there is none, it does not prove itself, or it is of other weights. `weights`: empty: of
// any.
std::optional<std::vector<double>> read_reference(const fs::path& file, const Digest& weights) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    const nlohmann::json kept = read_proved_json(file);
    if (!weights.empty() && kept.at("weights").get<Digest>() != weights) return std::nullopt;
    return kept.at("logprobs").get<std::vector<double>>();
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// The policy's config with the words of a reward model, and files by their size.
ModelForm written_form(const ModelForm& policy, const ModelConfig& reward) {
  if (policy.config.empty()) return {};
  nlohmann::ordered_json config = parse_ordered_json(reward_model_form(policy, reward).config);
  for (const char* key : {"torch_dtype", "dtype"})
    if (config.contains(key)) config[key] = "float32";
  return {.config = json_text(config, 2) + "\n", .keeps_dtypes = false};
}

}  // namespace

std::unique_ptr<PolicyTrainer> make_reward_trainer(const TrainerWorkerConfig& config,
                                                   const Stream& stream) {
  return std::make_unique<PolicyTrainer>(stream, reward_model_config(config.model), config.train,
                                         config.max_sequence_tokens, config.compute);
}

RowStages::RowStages(const TrainerWorkerConfig& config, const Stream& stream,
                     PolicyTrainer& trainer, const Digest& base, Log& log, Owner owner)
    : config_(config),
      stream_(stream),
      trainer_(trainer),
      base_(base),
      log_(log),
      owner_(std::move(owner)) {}

MetricList RowStages::run() {
  const std::vector<RowStage>& stages = config_.stages;
  // The last stage of the policy that has a checkpoint: those before it are done.
  std::unique_ptr<RowTask> task;
  size_t at = stages.size();
  while (at > 0) {
    --at;
    if (!stages[at].trains_policy() || !has_checkpoint(stages[at])) continue;
    task = make_task(stages[at], trainer_);
    if (resume(stages[at], trainer_, *task)) break;
    task.reset();
  }
  for (; at < stages.size(); ++at) {
    const RowStage& stage = stages[at];
    if (!stage.trains_policy()) {
      if (!train_reward_model(at)) break;
      continue;
    }
    if (task == nullptr) task = make_task(stage, trainer_);
    if (!train(at, trainer_, *task)) break;
    task.reset();
  }
  return std::move(last_);
}

std::unique_ptr<RowTask> RowStages::make_task(const RowStage& stage, PolicyTrainer& trainer) const {
  const int64_t ids = config_.model.num_ids(), longest = config_.max_sequence_tokens;
  const uint64_t seed = mix({config_.seed, kSftStream});
  const auto read = [&](const std::string& file) {
    return file.empty() ? std::vector<PreferenceRow>() : read_preference_rows(file, ids, longest);
  };
  if (const auto* sft = std::get_if<SftOptions>(&stage.work)) {
    const auto rows = [&](const std::string& file) {
      return file.empty() ? std::vector<SftRow>() : read_sft_rows(file, ids, longest);
    };
    return std::make_unique<SftTask>(trainer, *sft, rows(sft->data), rows(sft->eval_data), seed);
  }
  if (const auto* preference = std::get_if<PreferenceOptions>(&stage.work))
    return std::make_unique<PreferenceTask>(trainer, *preference, read(preference->data),
                                            read(preference->eval_data), seed);
  const auto& reward = std::get<RewardModelOptions>(stage.work);
  const int64_t padding = reward_padding(policy_form(), trainer.model().config());
  return std::make_unique<RewardModelTask>(trainer, reward, read(reward.data),
                                           read(reward.eval_data), seed, padding);
}

bool RowStages::has_checkpoint(const RowStage& stage) const {
  return !list_checkpoints(config_.run.stage_checkpoints(stage.name)).empty();
}

// Of the files that the policy came in; empty: it was made.
ModelForm RowStages::policy_form() const {
  return config_.model_dir.empty() ? ModelForm{} : read_model_form(config_.model_dir);
}

CheckpointFolder RowStages::folder_of(const RowStage& stage) const {
  return {config_.run.stage_checkpoints(stage.name), config_.tokenizer_dir, /*keep_last=*/1};
}

bool RowStages::resume(const RowStage& stage, PolicyTrainer& trainer, RowTask& task) {
  const ModelConfig& model = trainer.model().config();
  const auto loaded =
      folder_of(stage).load_latest(model, trainer.parameters(), trainer.optimizer());
  if (!loaded) return false;
  tell_passed_over(log_, *loaded, "update");
  require_saved_base(loaded->state, base_, config_.model_dir);
  trainer.weights_changed();
  // Batches are a function of the seed, so the updates that are saved are passed over by number.
  task.skip(loaded->state.step);
  log_.info("resumed stage={} update={} checkpoint={}", stage.name, task.updates_done(),
            loaded->path.string());
  return true;
}

// Once, before the first update; a stage that goes on has trained away from its reference.
bool RowStages::set_reference(const RowStage& stage, RowTask& row_task) {
  const auto* options = std::get_if<PreferenceOptions>(&stage.work);
  if (options == nullptr || !needs_reference(options->loss.kind)) return true;
  auto& task = dynamic_cast<PreferenceTask&>(row_task);
  const fs::path file = config_.run.stage_reference(stage.name);
  const Digest weights = root_of(trainer_.parameters());
  const bool begins = task.updates_done() == 0;
  if (std::optional<std::vector<double>> kept = read_reference(file, begins ? weights : Digest());
      kept && kept->size() == task.num_reference()) {
    task.set_reference(std::move(*kept));
    return true;
  }
  if (!begins)
    throw UserError(
        "{} is gone, damaged, or of other rows: the log-probabilities by the policy that the stage "
        "began with. Put it back, or start a new run directory.",
        file.string());
  std::optional<std::vector<double>> logprobs = task.score_reference(owner_.stops);
  if (!logprobs) return false;
  if (!std::ranges::all_of(*logprobs, [](double l) { return std::isfinite(l); }))
    throw UserError(
        "stage {}: the policy gives a row a log-probability that is not finite; its weights "
        "overflow float32, or are damaged.",
        stage.name);
  log_.info("stage={} reference sequences={}", stage.name, logprobs->size());
  const nlohmann::json json = {{"weights", weights}, {"logprobs", *logprobs}};
  if (const auto written = write_file_atomic(file, to_proved_json(json)); !written)
    throw UserError("{}", written.failure().message);
  task.set_reference(std::move(*logprobs));
  return true;
}

bool RowStages::train(size_t index, PolicyTrainer& trainer, RowTask& task) {
  const RowStage& stage = config_.stages[index];
  const bool is_last_stage = index + 1 == config_.stages.size();
  if (task.updates_done() == task.total_updates() && !is_last_stage) return true;
  owner_.begins({.number = static_cast<int64_t>(index) + 1,
                 .of = std::max(config_.num_stages, std::ssize(config_.stages)),
                 .name = stage.name});
  if (!set_reference(stage, task)) return false;
  const auto report = [&](const MetricList& metrics) {
    owner_.report({std::string(stage.kind()), task.updates_done(), task.total_updates(), metrics,
                   static_cast<int64_t>(index) + 1});
  };
  const int64_t checkpoint_updates = stage.rows().checkpoint_updates;
  const int64_t interval = std::max<int64_t>(1, task.total_updates() / kProgressReports);
  MetricList measured;
  if (task.updates_done() == 0 && task.evaluation_is_due()) {
    measured = evaluate(stage, task);
    report(measured);
  }
  while (std::optional<MetricList> metrics = task.update()) {
    const int64_t done = task.updates_done();
    const bool is_last = done == task.total_updates();
    MetricList row = done % interval == 0 || is_last ? *metrics : MetricList();
    if (task.evaluation_is_due()) {
      measured = evaluate(stage, task);
      row = joined(std::move(row), measured);
    }
    if (!row.empty()) report(row);
    last_ = joined(std::move(*metrics), measured);
    const bool is_due = checkpoint_updates > 0 && done % checkpoint_updates == 0;
    // Behind the last update of all version 0 is saved, or the folder of a reward model is still to
    // be written.
    const bool saves = is_last ? !is_last_stage || !stage.trains_policy() : is_due;
    if (saves) save(stage, trainer, task);
    if (!owner_.stops()) continue;
    // The person may go on.
    if (!saves) save(stage, trainer, task);
    return false;
  }
  return true;
}

bool RowStages::train_reward_model(size_t index) {
  const RowStage& stage = config_.stages[index];
  if (fs::exists(config_.run.stage_model(stage.name))) return true;
  const std::unique_ptr<PolicyTrainer> reward = make_reward_trainer(config_, stream_);
  copy_reward_body(trainer_.parameters(), reward->parameters());
  reward->weights_changed();
  const std::unique_ptr<RowTask> task = make_task(stage, *reward);
  resume(stage, *reward, *task);
  if (!train(index, *reward, *task)) return false;
  write_reward_model(stage, *reward);
  return true;
}

void RowStages::write_reward_model(const RowStage& stage, const PolicyTrainer& trainer) {
  const fs::path out = config_.run.stage_model(stage.name);
  // A trainer that was killed here may have left half of it; the run is this trainer's alone.
  std::error_code ignored;
  fs::remove_all(fs::path(out) += kUnfinished, ignored);
  UnfinishedFolder folder(out);
  // The master weights, in float32 whatever products have read.
  const ModelConfig config = written_as(trainer.model().config(), Dtype::kF32);
  save_model(folder.path(), config, trainer.parameters(), written_form(policy_form(), config));
  if (!config_.tokenizer_dir.empty()) text::copy_tokenizer(config_.tokenizer_dir, folder.path());
  folder.publish();
  log_.info("stage={} reward model={}", stage.name, folder.out().string());
}

MetricList RowStages::evaluate(const RowStage& stage, RowTask& task) {
  MetricList measured = task.evaluate();
  log_.info("stage={} update={} of {} {}={:.4f} {}={:.4f}", stage.name, task.updates_done(),
            task.total_updates(), measured[0].first, measured[0].second, measured[1].first,
            measured[1].second);
  return measured;
}

void RowStages::save(const RowStage& stage, PolicyTrainer& trainer, const RowTask& task) {
  const auto saved =
      folder_of(stage).save({.step = task.updates_done(),
                             .version = 0,
                             .updates = task.updates_done(),
                             .horizon = task.total_updates(),
                             .digest = root_of(trainer.parameters()),
                             .base = stage.trains_policy() ? base_ : Digest()},
                            written_as(trainer.model().config(), config_.compute.weights),
                            trainer.parameters(), trainer.optimizer());
  // It would cost what a kill costs without it.
  if (!saved)
    log_.warning("stage={} update={} is not saved: {}", stage.name, task.updates_done(),
                 saved.failure().message);
}

}  // namespace tailrace
