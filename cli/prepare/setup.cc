#include "cli/prepare/setup.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/mistakes.h"
#include "cli/config/named_file.h"
#include "cli/config/stages.h"
#include "cli/inputs/demonstrations.h"
#include "cli/inputs/fitted_prompts.h"
#include "cli/inputs/inputs.h"
#include "cli/inputs/length.h"
#include "cli/inputs/load.h"
#include "cli/inputs/policies.h"
#include "cli/inputs/prompts.h"
#include "cli/inputs/rewards.h"
#include "cli/inputs/stage_rows.h"
#include "cli/prepare/plan.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/base/time.h"
#include "core/base/version.h"
#include "core/chat/prompt_format.h"
#include "core/config/config_printer.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/text/dataset.h"
#include "core/text/tokenizer.h"
#include "reward/registry.h"
#include "rollout/episode/episode.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

void write_or_throw(const fs::path& file, std::string_view bytes) {
  if (auto written = write_file_atomic(file, bytes); !written)
    throw UserError("{}", written.failure().message);
}

// Whether a run that goes on may have `here` for what was `there`.
bool may_become(const OptionDoc& there, const OptionDoc& here) {
  switch (there.resume) {
    case Resume::kFixed:
      return false;
    case Resume::kMayChange:
      return true;
    case Resume::kMayGrow:
      return here.integer > there.integer;
  }
  return false;
}

// Whether it is the end of the stage of reinforcement learning, which may grow as run.steps may.
bool ends_with_steps(std::string_view key, const OptionDoc& option) {
  return key.starts_with("stages") && key.ends_with(".until") &&
         option.value.find(" step") != std::string::npos;
}

// "sft, judge".
std::string stage_names(const RunOptions& options) {
  std::vector<std::string> names;
  for (const RunStage& stage : stages_of(options)) names.push_back(stage.name);
  return names.empty() ? "none" : join_texts(names, ", ");
}

// "run.steps may grow, and ...": what a launch may change, for a person who changed something else.
std::string allowed_changes(const std::map<std::string, OptionDoc>& options) {
  std::vector<std::string> growing;
  for (const auto& [key, option] : options)
    // Each stage has a number of steps, and one at most says it.
    if (option.resume == Resume::kMayGrow && (!key.ends_with(".rl.steps") || option.integer > 0))
      growing.push_back(key);
  return fmt::format("{} may grow, and what decides how and where the work is done may change",
                     join_texts(growing, ", "));
}

void prepare_tokenizer(const RunPaths& paths, const ResolvedRun& run,
                       const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  // A run that goes on keeps its tokenizer, whatever has become of model.path since.
  // This file is the last: where a launch was killed before it, all of them are made again.
  if (fs::exists(paths.tokenizer() / "tokenizer.json")) return;
  std::error_code error;
  fs::create_directories(paths.tokenizer(), error);
  if (error) throw UserError("{}", describe_errno("create", paths.tokenizer(), error.value()));
  if (options.model.creates()) {
    text::write_word_tokenizer(paths.tokenizer(), vocabulary_of(run.datasets, environments));
  } else {
    text::copy_tokenizer(options.model.path, paths.tokenizer(), options.chat.template_file);
  }
}

// For a launch that finds the folder gone: what is trained is in the checkpoints.
void keep_adapter(const RunPaths& paths, const RunOptions& options) {
  if (options.lora.adapter.empty() || is_adapter(paths.adapter())) return;
  const auto config = read_file(fs::path(options.lora.adapter) / kAdapterConfigFile);
  if (!config) throw UserError("{}", config.failure().message).about("lora.adapter");
  std::error_code error;
  fs::create_directories(paths.adapter(), error);
  if (error) throw UserError("{}", describe_errno("create", paths.adapter(), error.value()));
  write_or_throw(paths.adapter() / kAdapterConfigFile, config.value());
}

std::vector<text::DatasetRow> training_rows(const RunOptions& options, const RunDataset& dataset) {
  return read_named(dataset.key("dataset"), [&] {
    const RowsFile rows = rows_of(dataset);
    return text::read_dataset(rows.file, rows.columns, options.files.limits());
  });
}

// The sft stage that learns from demonstrations; null: there is none.
const RunStage* demonstrated(const ResolvedRun& run) {
  const auto found = std::ranges::find_if(run.stages, &RunStage::has_demonstrations);
  return found == run.stages.end() ? nullptr : &*found;
}

int64_t demonstrations_of(const RunStage& stage) {
  return std::get<SftOptions>(stage.work).demonstrations;
}

void prepare_demonstrations(const RunPaths& paths, const ResolvedRun& run,
                            const Registries& registries, const chat::PromptFormat& format,
                            const std::function<void(const std::string&)>& say) {
  const RunOptions& options = run.options;
  const fs::path file = paths.demonstrations();
  // A file that is there is whole, for it is written atomically.
  const RunStage* stage = demonstrated(run);
  if (stage == nullptr || fs::exists(file)) return;
  const int64_t all = demonstrations_of(*stage);
  const std::vector<RunDataset>& datasets = run.datasets;
  const std::vector<int64_t> episodes = deal(datasets, all);
  // The demonstrations borrow these.
  std::vector<std::unique_ptr<sandbox::Environment>> environments;
  std::vector<std::vector<text::DatasetRow>> rows(datasets.size());
  std::vector<DemonstratedDataset> demonstrated;
  for (size_t i = 0; i < datasets.size(); ++i) {
    environments.push_back(registries.environments.make(datasets[i].env, datasets[i].settings));
    if (environments[i]->info().needs_dataset && episodes[i] > 0)
      rows[i] = training_rows(options, datasets[i]);
    demonstrated.push_back({*environments[i], rows[i], episodes[i]});
  }
  const DemonstrationPlan plan{.run_seed = static_cast<uint64_t>(options.run.seed),
                               .max_tokens = options.rollout.engine.max_context_tokens,
                               .step_timeout = std::chrono::duration_cast<Time>(
                                   std::chrono::duration<double>(options.rollout.step_timeout_s)),
                               .score_budget = score_budget(options.scheduler.deadlines.verify)};
  const DemonstrationCounts counts =
      write_demonstrations(file, demonstrated, format, *registries.verifiers, plan);
  say(fmt::format("{} demonstrations, {} tokens, success {:.2f}", all, counts.tokens,
                  static_cast<double>(counts.successes) / static_cast<double>(all)));
}

// The rows of a file as the trainer reads them. `rows`: where they were read already.
void prepare_stage_file(const RunOptions& options, const RunStage& stage, bool held_out,
                        const fs::path& file, const SftReading& reading, StageFile rows,
                        const std::function<void(const std::string&)>& say) {
  const std::string& named = held_out ? stage.rows().eval_data : stage.rows().data;
  if (named.empty() || fs::exists(file)) return;
  if (rows.rows == 0)
    rows = read_stage_file(stage, held_out, reading, options.train.microbatch_tokens);
  write_or_throw(file, rows.lines);
  say(fmt::format("{}: {}", stage.key(held_out ? "eval_data" : "data"), describe(rows)));
}

// Names, for a person: "grid, sums", or that there is one.
std::string list_names(const RunOptions& options) {
  if (options.datasets.empty()) return "the section env";
  std::vector<std::string> names;
  for (const DatasetSection& dataset : options.datasets) names.push_back(dataset.name);
  return join_texts(names, ", ");
}

std::string part_names(const RunOptions& options) {
  std::vector<std::string> names;
  for (const RewardPart& part : options.reward.parts) names.push_back(part.name);
  return fmt::format("[{}]", join_texts(names, ", "));
}

}  // namespace

void check_policy(const PlacedRun& placed) {
  const RunOptions& options = placed.run.options;
  const ModelConfig& config = placed.model;
  for (const FrozenModel& policy : frozen_models(options, config))
    read_named(fmt::format("policies.{}.model", policy.name),
               [&] { check_parameters(policy.dir, policy.model); });
  if (options.model.creates()) return;
  // What it says is learned before anything is written; of model.create there are no files yet.
  if (std::filesystem::exists(std::filesystem::path(options.model.path) / "tokenizer.json"))
    require_teacher_vocabulary(options, options.model.path);
  read_named("model.path", [&] { check_parameters(options.model.path, config); });
  if (options.lora.adapter.empty()) return;
  read_named("lora.adapter", [&] {
    const ParameterLayout layout = ParameterLayout::of_adapter(config);
    Parameters adapter(layout);
    load_parameters(options.lora.adapter, config, adapter, kAdapterFile);
  });
}

namespace {

// The error names the dataset that has no end; the scheduler's law refuses the same (5.3).
void check_ends(const ResolvedRun& run, std::span<const scheduler::DatasetConfig> datasets) {
  for (size_t i = 0; i < datasets.size(); ++i) {
    const scheduler::DatasetConfig& dataset = datasets[i];
    if (dataset.prompts_per_step == 0) continue;
    if (dataset.prompts_per_epoch == 0)
      throw UserError::at("run.steps",
                          "is 0 (until the epochs end), but {} draws its tasks without end. Try "
                          "run.steps=100.",
                          run.datasets[i].item);
    if (dataset.epochs == 0)
      throw UserError::at("run.steps",
                          "is 0 (until the epochs end), but {} is 0 as well. Try "
                          "run.epochs=1, or run.steps=100.",
                          run.datasets[i].key("epochs"));
  }
}

}  // namespace

scheduler::Config scheduler_config(const ResolvedRun& run) {
  const RunOptions& options = run.options;
  scheduler::RunShape shape{.steps = options.run.steps,
                            .trainer_ranks = static_cast<int32_t>(options.train.ranks),
                            .datasets = {}};
  const std::vector<int64_t> prompts = prompts_of_epoch(run);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const RunDataset& dataset = run.datasets[i];
    shape.datasets.push_back({.prompts_per_step = dataset.prompts,
                              .prompts_per_epoch = prompts[i],
                              .epochs = dataset.epochs,
                              .pool = dataset.pool,
                              .name = dataset.name.empty() ? dataset.env : dataset.name});
  }
  if (options.run.steps == 0 && !options.datasets.empty()) check_ends(run, shape.datasets);
  scheduler::EvalOptions eval = options.eval;
  // Law 10.1: where trainer and rollout worker take turns on a device, a batch that is handed over
  // would take the turn from the evaluation.
  eval.holds_training = options.run.colocate;
  scheduler::SchedulerOptions law = options.scheduler;
  law.deadlines.verify += run.rewards.start;
  return scheduler::make_config(law, options.step, eval, options.save, options.weights, shape);
}

scheduler::Config on_this_machine(scheduler::Config law, const PlacedRun& placed) {
  if (placed.evaluates_in_turn) law.eval.holds_training = true;
  return law;
}

namespace {

// Notes for a person on the rows of a file.
void add_notes(const FittedPrompts& found, std::vector<std::string>& notes) {
  if (found.first_special > 0)
    notes.push_back(
        fmt::format("{}: the prompt of line {} holds the text of a special token, "
                    "which is text like any other: no chat template is applied",
                    found.fit.key, found.first_special));
  if (found.nulls > 0)
    notes.push_back(fmt::format("{}: {}", found.fit.key, nulls_note(found.nulls)));
  if (found.cramped > 0)
    notes.push_back(
        fmt::format("{}: behind {} the context has no room for an answer of "
                    "rollout.max_action_tokens (the longest has {} tokens): such answers are cut. "
                    "Raise rollout.max_context_tokens, or limit rollout.max_prompt_tokens",
                    found.fit.key, counted(found.cramped, "prompt"), found.longest));
}

// The files of one dataset against its environment; what a person should know goes to `notes`.
void check_dataset_files(const RunOptions& options, const RunDataset& dataset,
                         sandbox::Environment& environment, const chat::PromptFormat& format,
                         const VerifierRegistry& verifiers, std::vector<std::string>& notes,
                         Mistakes& mistakes) {
  // Readable rows whose prompts leave room for an answer. Their number.
  const auto check = [&](const std::string& key, bool held_out) {
    const FittedFile& known = held_out ? dataset.fitted_eval : dataset.fitted;
    if (known.rows >= 0) return known.rows;  // fit_datasets() has just read them
    const FittedPrompts found = read_named(key, [&] {
      return fit_prompts(rows_of(dataset, held_out), key,
                         known.file.empty() ? dataset.too_long : TooLong::kRefuse,
                         {options, environment, format, verifiers});
    });
    add_notes(found, notes);
    return found.fit.rows;
  };
  if (dataset.ratio > 0) mistakes.look([&] { check(dataset.key("dataset"), /*held_out=*/false); });
  if (dataset.eval_dataset.empty() || options.eval.prompts == 0) return;
  const std::string key = dataset.key("eval_dataset");
  mistakes.look([&] {
    const int64_t rows = check(key, /*held_out=*/true);
    if (options.eval.prompts <= rows) return;
    throw UserError::at("eval.prompts",
                        "is {}, but {} {} has {} rows{}; none may count twice.\n       Try "
                        "eval.prompts={}.",
                        options.eval.prompts, key, dataset.eval_dataset, rows,
                        dataset.too_long == TooLong::kDrop ? " that fit" : "", rows);
  });
}

// Whether the chat template can write an environment's episodes.
void check_turns(const RunOptions& options, const chat::PromptFormat& format,
                 const sandbox::EnvironmentInfo& info, std::vector<std::string>& notes) {
  if (!format.has_template() || episode_limits(options.rollout, info).max_turns == 1) return;
  if (format.turns_fault())
    throw UserError::at("chat.style",
                        "is auto, but the chat template cannot write the turns of {}: {}.\n       "
                        "Try rollout.max_turns=1, another template (chat.template=FILE), or "
                        "chat.style=plain.",
                        info.name, *format.turns_fault());
  if (format.rewrites())
    notes.push_back(
        fmt::format("the chat template does not only append: {}. The turns of {} go on "
                    "behind what was sampled, as they are trained",
                    *format.rewrites(), info.name));
}

void check_verify_seconds(const RunOptions& options, const std::string& name,
                          const VerifierRegistry& verifiers) {
  const Verifier* verifier = verifiers.find(name);
  const Time verify = options.scheduler.deadlines.verify;
  if (verifier == nullptr || score_budget(verify) >= verifier->least_budget()) return;
  const int64_t least = verify_for(verifier->least_budget()).count();
  throw UserError::at("scheduler.verify_seconds",
                      "is {:g}; in less than {} the verifier {} decides nothing.\n       Try "
                      "scheduler.verify_seconds={}.",
                      seconds_of(verify), least, name,
                      std::chrono::duration_cast<std::chrono::seconds>(kVerifySeconds).count());
}

// Asked by trying: whether an environment has a demonstrator only a running episode says.
void check_demonstrators(const ResolvedRun& run, const sandbox::EnvironmentRegistry& environments) {
  const RunOptions& options = run.options;
  const RunStage* stage = demonstrated(run);
  if (stage == nullptr) return;
  for (const RunDataset& dataset : run.datasets) {
    if (dataset.ratio == 0) continue;
    const auto environment = environments.make(dataset.env, dataset.settings);
    sandbox::Task task{.seed = sandbox::task_seed(0, false, 0)};
    if (environment->info().needs_dataset) {
      const auto rows = training_rows(options, dataset);
      if (!rows.empty()) task.data = rows.front().json;
    }
    // An environment may fail now and then; one that never shows anything has no demonstrator.
    std::string failure;
    bool shows = false;
    for (int attempt = 0; attempt < 3 && !shows; ++attempt) {
      Rng rng(0);
      const auto first = environment->reset(task);
      failure = first ? "" : first.failure().message;
      shows = first && environment->demonstrate(rng);
      environment->close();
    }
    if (shows) continue;
    if (!failure.empty())
      throw UserError("environment {} fails in its first episode: {}", dataset.env, failure)
          .about(dataset.key("env"));
    throw UserError::at(stage->key("demonstrations"),
                        "is {}, but {} has no demonstrator. Use {}, or remove it.",
                        demonstrations_of(*stage), dataset.env, stage->key("data"));
  }
}

// A file or folder at `path` must not be seen by what a verifier runs.
void check_path_is_hidden(const std::string& key, const fs::path& path, std::string_view advice,
                          const ResolvedRun& run, const Registries& registries) {
  for (const RunDataset& dataset : run.datasets) {
    const auto source = registries.environments.source(dataset.env, dataset.settings);
    const std::string& name = source->info().verifier;
    const Verifier* verifier = registries.verifiers->find(name);
    if (verifier == nullptr) continue;
    if (const Result<void> fit = verifier->check_hidden(path); !fit)
      throw UserError("{}: {} (for the verifier {}){}", key, fit.failure().message, name, advice)
          .about(key);
  }
}

// How the policy of a run that has not begun reads and writes.
class PolicyText {
 public:
  // Throws UserError about model.path and the section chat.
  PolicyText(const PlacedRun& placed, const sandbox::EnvironmentRegistry& environments) {
    const RunOptions& options = placed.run.options;
    const std::string& model = options.model.path;
    if (!fs::exists(fs::path(model) / "tokenizer.json"))
      throw UserError(
          "model.path: {} has no tokenizer.json; episodes are text.\n       Save the model with "
          "its "
          "tokenizer.",
          model)
          .about("model.path");
    const int64_t vocab_size = placed.model.vocab_size;
    const std::vector<std::string> words = vocabulary_of(placed.run.datasets, environments);
    tokenizer_ = read_named("model.path", [&] {
      auto loaded = text::load_tokenizer(model);
      text::check_vocabulary(*loaded, vocab_size, model);
      // A word-level tokenizer names the word that it lacks.
      for (const std::string& word : words) (void)loaded->encode(word, {.find_special = false});
      return loaded;
    });
    read_named(options.chat.template_file.empty() ? "chat.style" : "chat.template", [&] {
      format_.emplace(chat::PromptFormat::of(options.chat, model, *tokenizer_));
      return true;
    });
  }
  const chat::PromptFormat& format() const { return *format_; }
  PolicyText(const PolicyText&) = delete;

 private:
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<chat::PromptFormat> format_;
};

}  // namespace

std::vector<std::string> check_inputs(const PlacedRun& placed, const Registries& registries) {
  const ResolvedRun& run = placed.run;
  const RunOptions& options = run.options;
  const sandbox::EnvironmentRegistry& environments = registries.environments;
  // Called for what it refuses.
  (void)scheduler_config(run);
  check_demonstrators(run, environments);
  // Its rows may be answers of the tasks.
  for (const RunStage& stage : run.stages)
    for (const auto& [key, file] :
         {std::pair("data", stage.rows().data), std::pair("eval_data", stage.rows().eval_data)})
      if (!file.empty()) check_path_is_hidden(stage.key(key), file, "", run, registries);
  if (options.model.creates()) return {};  // its words are those of its environments
  const PolicyText policy(placed, environments);
  const chat::PromptFormat& format = policy.format();
  std::vector<std::string> notes;
  Mistakes mistakes;
  for (const RunDataset& dataset : run.datasets) {
    const auto environment = environments.make(dataset.env, dataset.settings);
    check_turns(options, format, environment->info(), notes);
    // Rows are held against it, so it is told alone.
    check_verify_seconds(options, environment->info().verifier, *registries.verifiers);
    if (environment->info().needs_dataset)
      check_dataset_files(options, dataset, *environment, format, *registries.verifiers, notes,
                          mistakes);
  }
  mistakes.tell();
  return notes;
}

Plan checked_plan(const RunPaths& paths, const PlacedRun& placed, const Registries& registries,
                  bool is_new) {
  const ResolvedRun& run = placed.run;
  const RunOptions& options = run.options;
  const sandbox::EnvironmentRegistry& environments = registries.environments;
  // A run that goes on keeps its chat template, whatever has become of the file since.
  PlacedRun read = placed;
  if (fs::exists(paths.tokenizer() / "tokenizer.json"))
    read.run.options.chat = chat_of_run(paths, options);
  if (!paths.root.empty()) prove_prompts(paths, run);
  // Before anybody counts their rows.
  std::vector<FittedPrompts> prompts;
  if (!options.model.creates() && std::ranges::any_of(read.run.datasets, may_change))
    prompts = fit_datasets(read.run, registries, PolicyText(read, environments).format());
  Plan plan = make_plan(read, memory_facts().available_bytes);
  for (const FittedPrompts& found : prompts) add_notes(found, plan.warnings);
  plan.prompts = std::move(prompts);
  if (!paths.root.empty()) plan.prompt_fits = read_prompt_fits(paths);
  // A launch may have been killed between the two files of a dataset: the first is known and its
  // rows are found anew.
  for (const FittedPrompts& found : plan.prompts) {
    std::erase_if(plan.prompt_fits,
                  [&](const PromptFit& known) { return known.key == found.fit.key; });
    plan.prompt_fits.push_back(found.fit);
  }
  for (std::string& note : check_inputs(read, registries)) plan.warnings.push_back(std::move(note));
  if (!paths.root.empty())
    if (std::string shortage = disk_shortage(plan.disk, paths.root); !shortage.empty())
      plan.warnings.push_back(std::move(shortage));
  try_rewards(run, environments, registries.verifiers);
  try_remote_teacher(run.options, placed.model, run.options.model.path);
  check_filter_metric(run, environments, registries.verifiers);
  // A run that goes on has passed it before: its config was written afterwards.
  if (is_new) check_policy(placed);
  return plan;
}

void check_run_is_hidden(const fs::path& directory, const ResolvedRun& run,
                         const Registries& registries) {
  check_path_is_hidden("run.dir", directory, ".\n       Try --run-dir DIR.", run, registries);
}

std::string resolved_config(const RunOptions& options) {
  RunOptions kept = options;
  // A run is where its config lies, also when the folder has been moved.
  kept.run.dir.clear();
  return prove_config(
      fmt::format("Resolved by tailrace {}: 'tailrace launch' of this file starts the same run.",
                  version()),
      print_config(kept));
}

void prepare_run(const RunPaths& paths, const PlacedRun& placed, const Registries& registries,
                 const std::function<void(const std::string&)>& say, std::vector<StageFiles> rows,
                 std::vector<FittedPrompts> prompts) {
  const ResolvedRun& run = placed.run;
  const RunOptions& options = run.options;
  // First: it makes the directory a run's, and a launch that is killed after it is continued like
  // any other.
  write_or_throw(paths.config(), resolved_config(options));
  prepare_tokenizer(paths, run, registries.environments);
  require_teacher_vocabulary(options, paths.tokenizer());
  keep_adapter(paths, options);
  // The copy of the run, which its workers will read.
  auto tokenizer = text::load_tokenizer(paths.tokenizer());
  const auto format =
      chat::PromptFormat::of(chat_of_run(paths, options), paths.tokenizer(), *tokenizer);
  // Others of this launch read them too.
  ResolvedRun fitted = run;
  find_fitted_prompts(paths, fitted);
  if (!options.model.creates()) {
    if (prompts.empty()) prompts = fit_datasets(fitted, registries, format);
    write_fitted_prompts(paths, fitted, prompts);
    for (const FittedPrompts& one : prompts) say(describe(one.fit));
    find_fitted_prompts(paths, fitted);
  }
  prepare_demonstrations(paths, fitted, registries, format, say);
  const SftReading reading{.format = options.model.creates() ? nullptr : &format,
                           .vocab_size = placed.model.num_ids(),
                           .max_tokens = options.rollout.engine.max_context_tokens,
                           .limits = options.files.limits()};
  rows.resize(run.stages.size());
  for (size_t i = 0; i < run.stages.size(); ++i) {
    const RunStage& stage = run.stages[i];
    prepare_stage_file(options, stage, /*held_out=*/false, paths.stage_rows(stage.name), reading,
                       std::move(rows[i].data), say);
    prepare_stage_file(options, stage, /*held_out=*/true, paths.stage_eval_rows(stage.name),
                       reading, std::move(rows[i].eval_data), say);
  }
  write_library_facts(paths.environments(), registries);
  // Last: all that a run reads is there.
  prove_inputs(paths, fitted);
}

void check_same_run(const RunPaths& paths, const ResolvedRun& run, const Registries& registries) {
  const RunOptions& options = run.options;
  const RunOptions stored = load_stored_run(paths, {}, registries).run.options;
  if (list_names(stored) != list_names(options))
    throw UserError(
        "{} holds a run with other datasets: {} there, {} here. A run keeps its datasets, and "
        "their "
        "order.\n       Try 'tailrace launch --run-dir {}' to continue that one, or another "
        "--run-dir.",
        paths.root.string(), list_names(stored), list_names(options), paths.root.string())
        .about(options.datasets.empty() ? "env.name" : "datasets");
  const auto theirs = options_by_key(stored), ours = options_by_key(options);
  const auto refuse = [&](const std::string& key, const std::string& there, const std::string& here,
                          const std::string& allowed) {
    throw UserError(
        "{} holds a run with another config: {} is {} there, {} here. A run that goes on keeps it; "
        "{}.\n       Try 'tailrace launch --run-dir {}' to continue that one, or another "
        "--run-dir.",
        paths.root.string(), key, there, here, allowed, paths.root.string())
        .about(key);
  };
  const auto check = [&](const std::string& key) {
    // Both lists are of this build's options, of datasets and of parts with these names: of the
    // same keys, but for those of pools, which may come and go.
    const auto found = ours.find(key);
    if (found == ours.end()) return;
    const OptionDoc &there = theirs.at(key), &here = found->second;
    if (here.value == there.value || may_become(there, here)) return;
    if (ends_with_steps(key, there) && ends_with_steps(key, here) &&
        steps_of_stages(options) > steps_of_stages(stored))
      return;
    refuse(key, there.value, here.value,
           there.resume == Resume::kMayGrow ? fmt::format("{} may only grow", key)
                                            : allowed_changes(theirs));
  };
  // The scorer comes first: settings of environments follow from it.
  check("reward.command");
  check("reward.model");
  for (const RunDataset& dataset : run.datasets) check(dataset.key("command"));
  if (part_names(stored) != part_names(options))
    refuse("reward.parts", part_names(stored), part_names(options), allowed_changes(theirs));
  if (stage_names(stored) != stage_names(options))
    refuse("stages", stage_names(stored), stage_names(options), allowed_changes(theirs));
  for (const auto& [key, there] : theirs) check(key);
}

}  // namespace tailrace
