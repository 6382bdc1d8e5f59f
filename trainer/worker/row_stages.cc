#include "trainer/worker/row_stages.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
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
#include "core/weights/frozen_scorer.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "trainer/distill_task.h"
#include "trainer/preference.h"
#include "trainer/preference_rows.h"
#include "trainer/reward_training.h"
#include "trainer/sft.h"
#include "trainer/teacher_file.h"
#include "trainer/worker/saved_state.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kProgressReports = 50;  // of a whole stage
constexpr int64_t kPieceTokens = 2048;    // that a rank scores between two looks around
constexpr int64_t kNoStage = -1;          // that rank 0 says behind the last one

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

// What the teacher says of the targets of a row, as bytes of its file.
std::vector<std::byte> scored(FrozenScorer& teacher, const SftRow& row, int64_t top_k) {
  const int32_t first = row.targets.front(), last = row.targets.back();
  const SequenceScores all =
      teacher.score({.ids = std::span(row.tokens).first(static_cast<size_t>(last) + 1),
                     .first = first,
                     .top_k = top_k});
  TeacherScores scores;
  for (const int32_t target : row.targets) {
    const auto i = static_cast<size_t>(target - first);
    scores.logprobs.push_back(all.logprobs[i]);
    if (top_k == 0) continue;
    for (const auto& [id, logprob] : all.top[i]) {
      scores.ids.push_back(id);
      scores.id_logprobs.push_back(logprob);
    }
  }
  return bytes_of(scores, top_k);
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

bool RowStages::begin() {
  const std::vector<RowStage>& stages = config_.stages;
  // The last stage of the policy that has a checkpoint: those before it are done.
  for (at_ = stages.size(); at_ > 0;) {
    --at_;
    if (!stages[at_].trains_policy() || !has_checkpoint(stages[at_])) continue;
    task_ = make_task(stages[at_], trainer_);
    if (resume(stages[at_], trainer_, *task_)) break;
    task_.reset();
  }
  for (; at_ < stages.size() && is_done(at_, task_.get()); ++at_) task_.reset();
  if (at_ == stages.size()) return false;
  say_begins(at_);
  return true;
}

MetricList RowStages::run(Collective* ranks) {
  ranks_ = ranks;
  bool goes_on = true;
  for (; goes_on && at_ < config_.stages.size(); ++at_) {
    if (is_done(at_, task_.get())) continue;
    say_begins(at_);
    if (!config_.stages[at_].trains_policy()) {
      goes_on = train_reward_model(at_);
      continue;
    }
    if (task_ == nullptr) task_ = make_task(config_.stages[at_], trainer_);
    goes_on = train(at_, trainer_, *task_);
    task_.reset();
  }
  if (goes_on) agreed(kNoStage);
  return std::move(last_);
}

void RowStages::follow(Collective& ranks) {
  ranks_ = &ranks;
  bool goes_on = true;
  while (goes_on) {
    const int64_t index = agreed(kNoStage);
    if (index == kNoStage) return;
    const auto at = static_cast<size_t>(index);
    if (config_.stages.at(at).trains_policy()) {
      goes_on = train(at, trainer_, *make_task(config_.stages[at], trainer_));
      continue;
    }
    const std::unique_ptr<PolicyTrainer> reward = make_reward_trainer(config_, stream_);
    goes_on = train(at, *reward, *make_task(config_.stages[at], *reward));
  }
}

int64_t RowStages::agreed(int64_t own) {
  if (ranks_ != nullptr) ranks_->broadcast(std::as_writable_bytes(std::span(&own, 1)));
  return own;
}

bool RowStages::stops() { return agreed(owner_.stops() ? 1 : 0) != 0; }

void RowStages::say_begins(size_t index) {
  owner_.begins({.number = static_cast<int64_t>(index) + 1,
                 .of = std::max(config_.num_stages, std::ssize(config_.stages)),
                 .name = config_.stages[index].name});
}

// `task`: of it, where it goes on from a checkpoint.
bool RowStages::is_done(size_t index, const RowTask* task) const {
  const RowStage& stage = config_.stages[index];
  if (!stage.trains_policy()) return fs::exists(config_.run.stage_model(stage.name));
  // The last one has no checkpoint behind its last update, unless a person stopped it there.
  return task != nullptr && task->updates_done() == task->total_updates() &&
         index + 1 < config_.stages.size();
}

std::unique_ptr<RowTask> RowStages::make_task(const RowStage& stage, PolicyTrainer& trainer) const {
  const int64_t ids = config_.model.num_ids(), longest = config_.max_sequence_tokens;
  const uint64_t seed = mix({config_.seed, kSftStream});
  const auto read = [&](const std::string& file) {
    return file.empty() ? std::vector<PreferenceRow>() : read_preference_rows(file, ids, longest);
  };
  const auto rows = [&](const std::string& file) {
    return file.empty() ? std::vector<SftRow>() : read_sft_rows(file, ids, longest);
  };
  if (const auto* sft = std::get_if<SftOptions>(&stage.work))
    return std::make_unique<SftTask>(trainer, *sft, rows(sft->data), rows(sft->eval_data), seed);
  if (const auto* distill = std::get_if<DistillStageOptions>(&stage.work))
    return std::make_unique<DistillTask>(stream_, trainer, *distill, rows(distill->data),
                                         rows(distill->eval_data), seed);
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

std::optional<std::vector<double>> RowStages::kept_reference(const RowStage& stage,
                                                             const PreferenceTask& task) const {
  const fs::path file = config_.run.stage_reference(stage.name);
  // A stage that goes on has trained away from its reference.
  const bool begins = task.updates_done() == 0;
  std::optional<std::vector<double>> kept =
      read_reference(file, begins ? root_of(trainer_.parameters()) : Digest());
  if (kept && kept->size() == task.num_reference()) return kept;
  if (!begins)
    throw UserError(
        "{} is gone, damaged, or of other rows: the log-probabilities by the policy that the stage "
        "began with. Put it back, or start a new run directory.",
        file.string());
  return std::nullopt;
}

void RowStages::keep_reference(const RowStage& stage, const std::vector<double>& logprobs) {
  if (!std::ranges::all_of(logprobs, [](double l) { return std::isfinite(l); }))
    throw UserError(
        "stage {}: the policy gives a row a log-probability that is not finite; its weights "
        "overflow float32, or are damaged.",
        stage.name);
  log_.info("stage={} reference sequences={}", stage.name, logprobs.size());
  const nlohmann::json json = {{"weights", root_of(trainer_.parameters())}, {"logprobs", logprobs}};
  const fs::path file = config_.run.stage_reference(stage.name);
  if (const auto written = write_file_atomic(file, to_proved_json(json)); !written)
    throw UserError("{}", written.failure().message);
}

// Once, before the first update: all ranks score, and rank 0 keeps what they have made.
bool RowStages::set_reference(const RowStage& stage, RowTask& row_task) {
  const auto* options = std::get_if<PreferenceOptions>(&stage.work);
  if (options == nullptr || !needs_reference(options->loss.kind)) return true;
  auto& task = dynamic_cast<PreferenceTask&>(row_task);
  std::optional<std::vector<double>> logprobs;
  if (leads()) logprobs = kept_reference(stage, task);
  if (agreed(logprobs ? 1 : 0) != 0) {
    if (!logprobs) logprobs.emplace(task.num_reference());
    if (ranks_ != nullptr) ranks_->broadcast(std::as_writable_bytes(std::span(*logprobs)));
  } else {
    logprobs = task.score_reference([this] { return stops(); });
    if (!logprobs) return false;
    if (leads()) keep_reference(stage, *logprobs);
  }
  task.set_reference(std::move(*logprobs));
  return true;
}

bool RowStages::has_teacher_scores(const RowStage& stage, const DistillTask& task) const {
  const fs::path file = config_.run.stage_teacher(stage.name);
  const bool begins = task.updates_done() == 0;
  if (begins && !fs::exists(file)) return false;
  const Result<TeacherFile> kept = TeacherFile::open(file, task.head());
  if (!kept && !begins)
    throw UserError(
        "{} is gone, damaged, or of other rows: what the teacher said before the stage began. Put "
        "it back, or start a new run directory.",
        file.string());
  return kept.ok();
}

// All ranks score, a piece of some rows each time, and rank 0 writes. The teacher is in memory
// until they are done.
bool RowStages::score_rows(const RowStage& stage, const DistillTask& task) {
  const auto& options = std::get<DistillStageOptions>(stage.work);
  const auto named = std::ranges::find(config_.teachers, options.policy, &FrozenModel::name);
  TR_CHECK(named != config_.teachers.end(), "{} has no teacher", stage.name);
  FrozenScorer teacher(*named, config_.compute, stream_, config_.max_sequence_tokens);
  const TeacherFileHead head = task.head();
  std::optional<TeacherFileWriter> writer;
  if (leads()) writer.emplace(config_.run.stage_teacher(stage.name), head);
  const size_t ranks = ranks_ == nullptr ? 1 : static_cast<size_t>(ranks_->size());
  const size_t rank = ranks_ == nullptr ? 0 : static_cast<size_t>(ranks_->rank());
  log_.info("stage={} policy={} scores rows={} targets={} top_k={}", stage.name, options.policy,
            task.num_rows(), head.targets, head.top_k);
  // Each rank has a share of every piece, so that none waits for long and a person may stop it.
  for (size_t begin = 0, end = 0; begin < task.num_rows(); begin = end) {
    beat();
    if (stops()) return false;
    int64_t tokens = 0;
    for (; end < task.num_rows() && tokens < kPieceTokens * static_cast<int64_t>(ranks); ++end)
      tokens += std::ssize(task.row(end).tokens);
    std::vector<std::byte> own;
    for (size_t row = begin + rank; row < end; row += ranks)
      std::ranges::copy(scored(teacher, task.row(row), head.top_k), std::back_inserter(own));
    std::vector<std::vector<std::byte>> parts;
    if (ranks_ == nullptr)
      parts.push_back(std::move(own));
    else
      parts = ranks_->gather(own);
    std::vector<size_t> read(ranks);
    for (size_t row = begin; leads() && row < end; ++row) {
      const size_t of = (row - begin) % ranks;
      const auto bytes =
          static_cast<size_t>(std::ssize(task.row(row).targets) * head.bytes_per_target());
      writer->add(std::span(parts[of]).subspan(read[of], bytes));
      read[of] += bytes;
    }
  }
  if (leads()) writer->commit();
  agreed(0);  // the others read what rank 0 has written
  return true;
}

bool RowStages::set_teacher_scores(const RowStage& stage, RowTask& row_task) {
  if (!std::holds_alternative<DistillStageOptions>(stage.work)) return true;
  auto& task = dynamic_cast<DistillTask&>(row_task);
  const bool is_kept = agreed(leads() && has_teacher_scores(stage, task) ? 1 : 0) != 0;
  if (!is_kept && !score_rows(stage, task)) return false;
  Result<TeacherFile> scores =
      TeacherFile::open(config_.run.stage_teacher(stage.name), task.head());
  if (!scores) throw UserError("{}", scores.failure().message);
  task.set_scores(std::move(scores).value());
  return true;
}

bool RowStages::train(size_t index, PolicyTrainer& trainer, RowTask& task) {
  if (ranks_ != nullptr) {
    if (leads()) agreed(static_cast<int64_t>(index));
    task.skip(agreed(task.updates_done()));
    trainer.join(ranks_);
  }
  const RowStage& stage = config_.stages[index];
  return set_reference(stage, task) && set_teacher_scores(stage, task) &&
         train_updates(index, trainer, task);
}

bool RowStages::train_updates(size_t index, PolicyTrainer& trainer, RowTask& task) {
  const RowStage& stage = config_.stages[index];
  const bool is_last_stage = index + 1 == config_.stages.size();
  const auto report = [&](const MetricList& metrics) {
    if (!leads()) return;
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
    if (!stops()) continue;
    // The person may go on.
    if (!saves) save(stage, trainer, task);
    return false;
  }
  return true;
}

bool RowStages::train_reward_model(size_t index) {
  const RowStage& stage = config_.stages[index];
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
  if (leads())
    log_.info("stage={} update={} of {} {}={:.4f} {}={:.4f}", stage.name, task.updates_done(),
              task.total_updates(), measured[0].first, measured[0].second, measured[1].first,
              measured[1].second);
  return measured;
}

void RowStages::save(const RowStage& stage, PolicyTrainer& trainer, const RowTask& task) {
  if (!leads()) return;
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
