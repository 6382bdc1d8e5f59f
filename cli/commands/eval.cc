#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/chat_flags.h"
#include "cli/commands/commands.h"
#include "cli/commands/row_flags.h"
#include "cli/commands/sampling_flags.h"
#include "cli/config/counted.h"
#include "cli/config/datasets.h"
#include "cli/eval/evaluation.h"
#include "cli/eval/preference_pairs.h"
#include "cli/eval/suites.h"
#include "cli/inputs/load.h"
#include "cli/inputs/prompts.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/base/time.h"
#include "core/config/flags.h"
#include "core/model/adapter_files.h"
#include "core/run/run_directory.h"
#include "sandbox/registry.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

struct EvalArguments {
  std::string model, run, name, suite, dataset, pairs, labels;
  std::vector<std::string> settings, columns, chat_variables;
  FilesSection files;
  text::RowLimits limits;
  text::ColumnMap column_map;
  std::vector<int64_t> ks = {1};
  std::optional<int64_t> episodes, samples;
  std::optional<uint64_t> seed;
  EvaluationPlan plan;
  bool training_seeds = false, plain = false, json = false, rows = false;
  ComputeFlags compute;
};

std::vector<std::pair<std::string, std::string>> parse_pairs(
    const std::string& option, const std::string& example, const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& text : texts) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UserError("{} {}: a pair is written name=value, for example {}", option, text, example);
    pairs.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return pairs;
}

// The newest checkpoint that proves itself, where no model is given: the one that a launch would
// go on from. That it is not the newest of all is said, and not on stdout, which is for numbers.
std::string model_of(const EvalArguments& arguments) {
  if (!arguments.model.empty()) return arguments.model;
  const auto found = find_proved_checkpoint(RunPaths{arguments.run}.checkpoints());
  if (!found)
    throw UserError("{} has no checkpoint yet.\n       Give one with --model DIR.", arguments.run);
  for (const std::string& reason : found->passed_over)
    fmt::print(stderr, "note: checkpoint{}{}\n", kPassedOver, reason);
  if (!found->passed_over.empty())
    fmt::print(stderr, "note: what is evaluated is {}\n", found->path.string());
  return found->path.string();
}

// The run's own evaluation, in the same way: for each of its datasets, or the one of
// `arguments.name`. `registries` get what its libraries add.
std::vector<EvalArguments> adopt_run(EvalArguments arguments, Registries& registries) {
  const RunPaths paths{arguments.run};
  if (!std::filesystem::exists(paths.config()))
    throw UserError("--run {}: it holds no run (no config.yaml)", arguments.run);
  LoadedRun run = load_stored_run(paths, {}, registries);
  const RunOptions& options = run.run.options;
  registries = run.registries;
  arguments.model = model_of(arguments);
  // The run's device and KV cache repeat its evaluation number for number.
  if (arguments.compute.device == DeviceChoice::kAuto)
    arguments.compute.device = options.model.device;
  if (arguments.compute.kv_cache_dtype == Compute::kAuto)
    arguments.compute.kv_cache_dtype = options.model.kv_cache_dtype;
  EvaluationPlan& plan = arguments.plan;
  // The thread number is this command's, not that of the run's workers.
  const int64_t env_threads = plan.rollout.env_threads;
  plan.chat = chat_of_run(paths, options);
  plan.rollout = options.rollout;
  plan.rollout.sampling =
      options.rollout.sampling_in(arguments.training_seeds ? Lane::kTrain : Lane::kEval);
  plan.rollout.env_threads = env_threads;
  plan.episodes = options.eval.prompts;
  plan.samples = options.eval.group_size;
  plan.seed = static_cast<uint64_t>(options.run.seed);
  plan.score_budget = score_budget(options.scheduler.deadlines.verify);
  const std::string asked = std::exchange(arguments.name, "");
  std::vector<EvalArguments> all;
  std::vector<std::string> names;
  const std::vector<RunDataset>& datasets = run.run.datasets;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const RunDataset& dataset = datasets[i];
    names.push_back(dataset.name);
    if (!asked.empty() && asked != dataset.name) continue;
    // A dataset that is only evaluated has no training prompts.
    if (arguments.training_seeds && dataset.ratio == 0 && asked.empty()) continue;
    EvalArguments& one = all.emplace_back(arguments);
    if (datasets.size() > 1) one.name = dataset.name;
    // Without a dataset both names are empty, and the seeds tell held-out tasks from those of
    // training.
    const bool held_out = !arguments.training_seeds && !dataset.eval_dataset.empty();
    RowsFile rows = rows_of(dataset, held_out);
    one.dataset = rows.file.string();
    one.column_map = std::move(rows.columns);
    one.limits = options.files.limits();
    one.plan.env = dataset.env;
    one.plan.settings = dataset.settings;
    one.plan.dataset_index = static_cast<int32_t>(i);
  }
  if (datasets.empty())
    throw UserError(
        "--run {}: it learned from sft.data alone and evaluates no environment.\n       Try "
        "--model "
        "{} --env NAME.",
        arguments.run, arguments.model);
  if (all.empty())
    throw UserError("--name {}: {} has no such dataset; it has {}.", asked, arguments.run,
                    join_texts(names, ", "));
  return all;
}

// Fills in what the model, the environment and the dataset decide.
EvaluationPlan complete_plan(const EvalArguments& arguments, const ModelConfig& config,
                             const Registries& registries) {
  EvaluationPlan plan = arguments.plan;
  plan.held_out = !arguments.training_seeds;
  // Options given on the command line win over the run's.
  plan.episodes = arguments.episodes.value_or(plan.episodes);
  plan.samples = arguments.samples.value_or(plan.samples);
  plan.seed = arguments.seed.value_or(plan.seed);
  const auto source = registries.environments.source(plan.env, plan.settings);
  const bool needs_dataset = source->info().needs_dataset;
  if (needs_dataset && arguments.dataset.empty())
    throw UserError("--env {} needs --dataset FILE, a JSONL file with a prompt in each row",
                    plan.env);
  if (!needs_dataset && !arguments.dataset.empty())
    throw UserError("--dataset has no effect: {} draws its own tasks. Remove it.", plan.env);
  if (needs_dataset) {
    if (!arguments.suite.empty())
      plan.dataset = read_suite(find_suite(arguments.suite), arguments.dataset,
                                *registries.verifiers, plan.score_budget, arguments.limits);
    else
      plan.dataset = read_prompts(arguments.dataset, arguments.column_map, source->info().verifier,
                                  *registries.verifiers, plan.score_budget, arguments.limits);
    auto rows = static_cast<int64_t>(plan.dataset.size());
    if (rows == 0) throw UserError("{} has no rows", arguments.dataset);
    if (plan.episodes > rows)
      throw UserError("--episodes is {}; {} has {} rows, and none may count twice. Try {}.",
                      plan.episodes, arguments.dataset, rows, rows);
    if (plan.episodes == 0) plan.episodes = rows;
  } else if (plan.episodes == 0) {
    // Enough for a share to be known to about 6 points on each side.
    plan.episodes = 256;
  }
  EngineOptions& engine = plan.rollout.engine;
  if (engine.max_context_tokens == 1)
    throw UserError("--max-context-tokens is 1; a prompt and its answer need at least 2");
  if (engine.max_context_tokens > config.max_positions)
    throw UserError("--max-context-tokens is {}; the model has {} positions",
                    engine.max_context_tokens, config.max_positions);
  // A model may know a hundred thousand positions, and the KV cache has to hold one whole context.
  plan.keeps_tokens = !arguments.pairs.empty() || !arguments.labels.empty();
  if (engine.max_context_tokens == 0)
    engine.max_context_tokens = std::min<int64_t>(config.max_positions, 4096);
  for (int64_t k : arguments.ks)
    if (k > plan.samples)
      throw UserError(
          "--k {} needs at least as many samples of each prompt; --samples is {}. Try --samples "
          "{}.",
          k, plan.samples, k);
  return plan;
}

Json to_json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"low", estimate.low}, {"high", estimate.high}};
}

Json to_json(const EvalArguments& arguments, const EvaluationPlan& plan,
             const EvaluationSummary& summary, const std::string& device, double seconds) {
  Json out = {{"model", arguments.model},
              {"env", plan.env},
              {"device", device},
              {"seed", plan.seed},
              {"held_out", plan.held_out},
              {"temperature", plan.rollout.sampling.temperature},
              {"prompts", summary.prompts},
              {"samples", plan.samples},
              {"episodes", summary.episodes},
              {"failed", summary.failed},
              {"reward", to_json(summary.reward)},
              {"success", to_json(summary.success)},
              {"pass_at_k", Json::object()},
              {"mean_turns", summary.mean_turns},
              {"mean_sampled_tokens", summary.mean_sampled_tokens},
              {"truncated_share", summary.truncated_share},
              {"metrics", Json::object()},
              {"seconds", seconds}};
  for (const auto& [k, estimate] : summary.pass_at_k)
    out["pass_at_k"][fmt::format("{}", k)] = to_json(estimate);
  if (!arguments.name.empty()) out["dataset"] = arguments.name;
  for (const auto& [name, value] : summary.metrics) out["metrics"][name] = value;
  return out;
}

void print_rows(const EvalArguments& arguments, const std::vector<EvaluatedEpisode>& episodes) {
  for (const EvaluatedEpisode& episode : episodes) {
    Json row = Json::object();
    if (!arguments.name.empty()) row["dataset"] = arguments.name;
    row["prompt"] = episode.prompt;
    row["sample"] = episode.sample;
    // null, not 0: a failed episode has no score, and who averages the rows must not take it for
    // one.
    row["reward"] = episode.failed ? Json() : Json(episode.reward);
    row["success"] = episode.failed ? Json() : Json(episode.success);
    row["turns"] = episode.turns;
    row["sampled_tokens"] = episode.sampled_tokens;
    fmt::print("{}\n", json_text(row));
  }
}

void print_text(const EvalArguments& arguments, const EvaluationSummary& summary,
                const EvaluationPlan& plan, double seconds) {
  auto line = [](std::string_view label, const Estimate& estimate) {
    // A reward has no known bounds: of equal ones nothing more can be said.
    const std::string interval =
        estimate.low < estimate.high
            ? fmt::format("95 % interval {:.4f} to {:.4f}", estimate.low, estimate.high)
            : "the same for every prompt";
    fmt::print("{:<10} {:.4f}   {}\n", label, estimate.mean, interval);
  };
  const std::string what =
      arguments.name.empty() ? plan.env : fmt::format("{} ({})", arguments.name, plan.env);
  fmt::print("{}: {} x {}, seed {}, temperature {}\n", what, counted(plan.episodes, "prompt"),
             counted(plan.samples, "sample"), plan.seed, plan.rollout.sampling.temperature);
  line("reward", summary.reward);
  line("success", summary.success);
  for (const auto& [k, estimate] : summary.pass_at_k) line(fmt::format("pass@{}", k), estimate);
  fmt::print("{:<10} {:.1f} sampled tokens, {:.1f} turns, {:.1f} % truncated\n", "length",
             summary.mean_sampled_tokens, summary.mean_turns, summary.truncated_share * 100);
  // Success has its line above.
  for (const auto& [name, value] : summary.metrics)
    if (name != "success") fmt::print("{:<10} {:.4f}\n", name, value);
  if (summary.failed > 0)
    fmt::print("{:<10} {}, left out; the first: {}\n", "failed", counted(summary.failed, "episode"),
               printable(summary.failure));
  fmt::print("{:<10} {:.1f} s\n", "time", seconds);
}

void eval_one(const EvalArguments& arguments, const EvaluationPlan& plan, const LoadedModel& loaded,
              const text::Tokenizer& tokenizer, const Registries& registries) {
  const auto format =
      chat::PromptFormat::of(plan.chat, tokenizer_folder(arguments.model), tokenizer);
  // Loading is not counted.
  auto start = std::chrono::steady_clock::now();
  auto episodes = evaluate(loaded, format, plan, registries, [](const std::string& line) {
    // Not on stdout, which is for numbers; it may quote what an agent said.
    fmt::print(stderr, "note: {}\n", printable(line));
  });
  double seconds = seconds_of(std::chrono::steady_clock::now() - start);
  EvaluationSummary summary = summarise(episodes, arguments.ks, plan.seed);
  if (summary.prompts == 0)
    throw UserError(
        "all {} episodes of the environment {} failed, so there is no score. The first: {}",
        summary.episodes, plan.env, summary.failure);
  // With --json as well: the rows, then the summary as the last line.
  if (arguments.rows) print_rows(arguments, episodes);
  if (arguments.json)
    fmt::print("{}\n", json_text(to_json(arguments, plan, summary, describe(loaded.stream().device),
                                         seconds)));
  else if (!arguments.rows)
    print_text(arguments, summary, plan, seconds);
  // Behind the figures, which are there whether there are preferences or not.
  if (!arguments.pairs.empty())
    fmt::print(stderr, "{}: {}\n", arguments.pairs,
               write_preferences(arguments.pairs, preference_pairs(episodes), episodes));
  if (!arguments.labels.empty())
    fmt::print(stderr, "{}: {}\n", arguments.labels,
               write_preferences(arguments.labels, labelled_answers(episodes), episodes));
}

void eval(EvalArguments arguments, Registries registries) {
  std::vector<EvalArguments> all;
  if (!arguments.run.empty()) {
    all = adopt_run(std::move(arguments), registries);
  } else {
    arguments.plan.settings = parse_pairs("--settings", "size=6", arguments.settings);
    arguments.limits = limits_of_flags(arguments.files);
    arguments.column_map = parse_pairs("--columns", "prompt=question", arguments.columns);
    set_variables(arguments.plan.chat, arguments.chat_variables);
    if (!arguments.suite.empty()) {
      arguments.plan.env = "text";
      arguments.plan.settings = find_suite(arguments.suite).settings();
      arguments.name = arguments.suite;  // for who reads the numbers
    }
    all.push_back(std::move(arguments));
  }
  if (all.size() > 1 && !(all[0].pairs.empty() && all[0].labels.empty()))
    throw UserError("--pairs and --labels write one dataset, and the run has {}. Give --name.",
                    all.size());
  const ModelConfig config = read_policy_folder(all[0].model).config;
  const auto tokenizer = load_tokenizer_of(tokenizer_folder(all[0].model), config);
  std::vector<EvaluationPlan> plans;
  int64_t longest = 0;
  for (const EvalArguments& one : all) {
    plans.push_back(complete_plan(one, config, registries));
    // One model serves all datasets: its tables of positions are made for the longest context.
    longest = std::max(longest, plans.back().rollout.engine.max_context_tokens);
  }
  // Weights last: what is wrong with a plan is said before gigabytes are read.
  const LoadedModel loaded(all[0].model, all[0].compute, longest);
  for (size_t i = 0; i < all.size(); ++i)
    eval_one(all[i], plans[i], loaded, *tokenizer, registries);
}

}  // namespace

void add_eval(Command& program, const Registries& registries) {
  auto arguments = std::make_shared<EvalArguments>();
  Command& command =
      program.command("eval", "Mean reward, success and pass@k with confidence intervals");
  EvaluationPlan& plan = arguments->plan;
  command.option("--model", arguments->model,
                 {.help = "Hugging Face folder with its tokenizer", .value = "DIR"});
  command.option("--run", arguments->run,
                 {.help = "evaluate as this run does: its environment, prompts, sampling, limits "
                          "and seed; of --model, or of its newest checkpoint",
                  .value = "RUN"});
  command.option("--name", arguments->name,
                 {.help = "which of the run's datasets; without it each, one after the other",
                  .value = "NAME",
                  .needs = "--run"});
  // Options whose values come with --run; the others may be given beside it.
  const auto without_run = [](FlagInfo info) {
    info.excludes.push_back("--run");
    return info;
  };
  command.option("--env", plan.env,
                 without_run({.help = "what to play, of the environments below", .value = "NAME"}));
  command.option("--settings", arguments->settings,
                 without_run({.help = "of the environment, name=value ...", .value = "K=V"}));
  command.option("--dataset", arguments->dataset,
                 without_run({.help = "JSONL file of prompts, for environments that need one",
                              .value = "FILE"}));
  command.option("--columns", arguments->columns,
                 without_run({.help = "columns that have other names in the file, ours=theirs ...",
                              .value = "OURS=THEIRS"}));
  add_row_flags(command, arguments->files, {"--run"});
  command.option("--suite", arguments->suite,
                 {.help = "an evaluation set of those below, read from the file of --dataset",
                  .one_of = suite_names(),
                  .needs = "--dataset",
                  .excludes = {"--run", "--env", "--settings", "--columns"}});
  command.option("--episodes", arguments->episodes,
                 {.help = "prompts; without it the run's, the whole dataset, or 256",
                  .min = 1,
                  .max = 1 << 30});
  command.option("--samples", arguments->samples,
                 {.help = "episodes of each prompt; 1, or the run's", .min = 1, .max = 1 << 20});
  command.option("--k", arguments->ks,
                 {.help = "pass@k for these k, for example --k 1 4 8", .min = 1, .max = 1 << 20});
  command.option("--seed", arguments->seed, {.help = "of tasks and sampling; 0, or the run's"});
  command.option("--training-seeds", arguments->training_seeds,
                 {.help = "tasks that training draws, instead of held-out ones"});
  command.option("--success-reward", plan.success_reward,
                 {.help = "least reward of a success, where the environment does not say",
                  .min = -1e9,
                  .max = 1e9});
  add_sampling_flags(command, plan.rollout.sampling, {"--run"});
  add_chat_flags(command, plan.chat, arguments->chat_variables, {"--run"});
  command.option(
      "--plain", arguments->plain,
      {.help = "prompts as they are, also where the model has a chat template",
       .excludes = {"--run", "--chat-template", "--system", "--chat-variable", "--chat-date"}});
  command.option("--max-turns", plan.rollout.max_turns,
                 without_run({.help = "0: what the environment says", .max = 1 << 20}));
  command.option("--max-action-tokens", plan.rollout.max_action_tokens,
                 without_run({.help = "0: what the environment suggests", .max = 1 << 30}));
  command.option("--max-context-tokens", plan.rollout.engine.max_context_tokens,
                 without_run({.help = "0: the model's positions, at most 4096", .max = 1 << 30}));
  command.option("--kv-cache-mb", plan.rollout.engine.kv_cache_mb,
                 without_run({.help = "of the decode engine", .min = 1, .max = 1 << 24}));
  add_compute_flags(command, arguments->compute);
  command.option("--env-threads", plan.rollout.env_threads,
                 {.help = "threads that run environments", .min = 1, .max = 1024});
  command.option("--json", arguments->json, {.help = "one JSON object"});
  command.option("--rows", arguments->rows, {.help = "a JSON row for each episode"});
  command.option("--pairs", arguments->pairs,
                 {.help = "write preferences, as preference.data reads them: of each prompt whose "
                          "answers have different rewards the best and the worst one, as token ids",
                  .value = "FILE.jsonl"});
  command.option("--labels", arguments->labels,
                 {.help = "write each answer with its success as label, for the loss kto",
                  .value = "FILE.jsonl"});
  std::string environments = "Environments:\n";
  for (const auto& [name, help, settings] : registries.environments.list())
    environments += fmt::format("  {:<14} {}\n", name, help);
  environments += "Suites:\n";
  for (const EvalSuite& suite : eval_suites())
    environments += fmt::format("  {:<14} {}\n", suite.name, suite.help);
  command.footer(
      environments +
      "Intervals are at 95 %, over prompts: Wilson's for success and pass@k where each prompt has "
      "0\n"
      "or 1 (one sample, or k = samples) or all have the same, else the bootstrap. pass@k is "
      "unbiased.\n"
      "The same seed gives the same episodes: --run repeats the run's own evaluation number for "
      "number.\n\n"
      "Example:\n  tailrace eval --model runs/quickstart/checkpoints/step_000080 --env frozen_grid "
      "--episodes 512 --samples 4 --k 1 4\n  tailrace eval --run runs/quickstart\n"
      "  tailrace eval --model DIR --suite gsm8k --dataset gsm8k_test.jsonl");
  command.action([arguments, &command, &registries] {
    // Not by `required`: either of two forms will do.
    const bool what = !arguments->plan.env.empty() || !arguments->suite.empty();
    if (!command.given("--run") && (!command.given("--model") || !what))
      throw UserError("eval wants --model DIR and --env NAME or --suite NAME, or --run RUN.");
    if (arguments->plain) arguments->plan.chat.style = chat::Style::kPlain;
    eval(*arguments, registries);
    return kExitDone;
  });
}

}  // namespace tailrace
