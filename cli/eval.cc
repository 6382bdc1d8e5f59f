#include <chrono>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/counted.h"
#include "cli/evaluation.h"
#include "cli/sampling_flags.h"
#include "core/base/error.h"
#include "core/text/utf8.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

struct EvalArguments {
  std::string model, dataset, prompt_key = "prompt";
  std::vector<std::string> settings;
  std::vector<int64_t> ks = {1};
  EvaluationPlan plan;
  bool training_seeds = false, json = false, rows = false;
  int threads = 0;
};

EnvironmentSettings parse_settings(const std::vector<std::string>& texts) {
  EnvironmentSettings settings;
  for (const std::string& text : texts) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UserError("--settings {}: a setting is written name=value, for example size=6", text);
    settings.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return settings;
}

// Fills in what the model, the environment and the dataset decide.
EvaluationPlan complete_plan(const EvalArguments& arguments, const ModelConfig& config) {
  EvaluationPlan plan = arguments.plan;
  plan.settings = parse_settings(arguments.settings);
  plan.held_out = !arguments.training_seeds;
  bool needs_dataset = built_in_environments().make(plan.env, plan.settings)->info().needs_dataset;
  if (needs_dataset && arguments.dataset.empty())
    throw UserError("--env {} needs --dataset FILE, a JSONL file with a prompt in each row",
                    plan.env);
  if (!needs_dataset && !arguments.dataset.empty())
    throw UserError("--dataset has no effect: {} draws its own tasks. Remove it.", plan.env);
  if (needs_dataset) {
    plan.dataset = read_dataset(arguments.dataset, arguments.prompt_key);
    auto rows = static_cast<int64_t>(plan.dataset.size());
    if (rows == 0) throw UserError("{} has no rows", arguments.dataset);
    plan.episodes = plan.episodes > 0 ? std::min(plan.episodes, rows) : rows;
  } else if (plan.episodes == 0) {
    plan.episodes = 256;
  }
  EngineOptions& engine = plan.rollout.engine;
  if (engine.max_context_tokens == 1)
    throw UserError("--max-context-tokens is 1; a prompt and its answer need at least 2");
  if (engine.max_context_tokens > config.max_positions)
    throw UserError("--max-context-tokens is {}; the model has {} positions",
                    engine.max_context_tokens, config.max_positions);
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

Json to_json(const EvalArguments& arguments, const EvaluationSummary& summary, double seconds) {
  Json out = {{"model", arguments.model},
              {"env", arguments.plan.env},
              {"seed", arguments.plan.seed},
              {"held_out", !arguments.training_seeds},
              {"temperature", arguments.plan.rollout.sampling.temperature},
              {"prompts", summary.prompts},
              {"samples", arguments.plan.samples},
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
  for (const auto& [name, value] : summary.metrics) out["metrics"][name] = value;
  return out;
}

void print_rows(const std::vector<EvaluatedEpisode>& episodes) {
  for (const EvaluatedEpisode& episode : episodes) {
    Json row = {{"prompt", episode.prompt}, {"sample", episode.sample}};
    row["reward"] = episode.failed ? Json() : Json(episode.reward);
    row["success"] = episode.failed ? Json() : Json(episode.success);
    row["turns"] = episode.turns;
    row["sampled_tokens"] = episode.sampled_tokens;
    fmt::print("{}\n", row.dump());
  }
}

void print_text(const EvaluationSummary& summary, const EvaluationPlan& plan, double seconds) {
  auto line = [](std::string_view label, const Estimate& estimate) {
    // A reward has no known bounds: of equal ones nothing more can be said.
    const std::string interval =
        estimate.low < estimate.high
            ? fmt::format("95 % interval {:.4f} to {:.4f}", estimate.low, estimate.high)
            : "the same for every prompt";
    fmt::print("{:<10} {:.4f}   {}\n", label, estimate.mean, interval);
  };
  fmt::print("{}: {} x {}, seed {}, temperature {}\n", plan.env, counted(plan.episodes, "prompt"),
             counted(plan.samples, "sample"), plan.seed, plan.rollout.sampling.temperature);
  line("reward", summary.reward);
  line("success", summary.success);
  for (const auto& [k, estimate] : summary.pass_at_k) line(fmt::format("pass@{}", k), estimate);
  fmt::print("{:<10} {:.1f} sampled tokens, {:.1f} turns, {:.1f} % truncated\n", "length",
             summary.mean_sampled_tokens, summary.mean_turns, summary.truncated_share * 100);
  for (const auto& [name, value] : summary.metrics)
    if (name != "success") fmt::print("{:<10} {:.4f}\n", name, value);
  if (summary.failed > 0)
    fmt::print("{:<10} {}, left out; the first: {}\n", "failed", counted(summary.failed, "episode"),
               printable(summary.failure));
  fmt::print("{:<10} {:.1f} s\n", "time", seconds);
}

void eval(const EvalArguments& arguments) {
  LoadedModel loaded(arguments.model, arguments.threads);
  auto tokenizer = load_tokenizer_of(arguments.model, loaded.config());
  EvaluationPlan plan = complete_plan(arguments, loaded.config());
  auto start = std::chrono::steady_clock::now();
  auto episodes = evaluate(loaded, *tokenizer, plan);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EvaluationSummary summary = summarise(episodes, arguments.ks, plan.seed);
  if (summary.prompts == 0)
    throw UserError(
        "all {} episodes of the environment {} failed, so there is no score. The first: {}",
        summary.episodes, plan.env, summary.failure);
  if (arguments.rows) print_rows(episodes);
  if (arguments.json)
    fmt::print("{}\n", to_json(arguments, summary, seconds).dump());
  else if (!arguments.rows)
    print_text(summary, plan, seconds);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto arguments = std::make_shared<EvalArguments>();
  auto* command =
      app.add_subcommand("eval", "Mean reward, success and pass@k with confidence intervals");
  EvaluationPlan& plan = arguments->plan;
  command->add_option("--model", arguments->model, "Hugging Face folder with its tokenizer")
      ->required()
      ->type_name("DIR");
  command->add_option("--env", plan.env, "frozen_grid, countdown, calculator, text")
      ->required()
      ->type_name("NAME");
  command->add_option("--settings", arguments->settings, "of the environment, name=value ...")
      ->type_name("K=V");
  command
      ->add_option("--dataset", arguments->dataset,
                   "JSONL file of prompts, for environments that need one")
      ->type_name("FILE");
  command->add_option("--prompt-key", arguments->prompt_key, "field of a row that holds the prompt")
      ->capture_default_str();
  command->add_option("--episodes", plan.episodes, "prompts; 0: the whole dataset, or 256")
      ->check(CLI::Range(0, 1 << 30));
  command->add_option("--samples", plan.samples, "episodes of each prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--k", arguments->ks, "pass@k for these k, for example --k 1 4 8")
      ->check(CLI::Range(1, 1 << 20))
      ->delimiter(',');
  command->add_option("--seed", plan.seed, "of tasks and sampling")->capture_default_str();
  command->add_flag("--training-seeds", arguments->training_seeds,
                    "tasks that training draws, instead of held-out ones");
  command
      ->add_option("--success-reward", plan.success_reward,
                   "least reward of a success, where the environment does not say")
      ->capture_default_str();
  add_sampling_flags(*command, plan.rollout.sampling);
  command->add_option("--max-turns", plan.rollout.max_turns, "0: what the environment says")
      ->check(CLI::Range(0, 1 << 20));
  command
      ->add_option("--max-action-tokens", plan.rollout.max_action_tokens,
                   "0: what the environment suggests")
      ->check(CLI::Range(0, 1 << 30));
  command
      ->add_option("--max-context-tokens", plan.rollout.engine.max_context_tokens,
                   "0: the model's positions, at most 4096")
      ->check(CLI::Range(0, 1 << 30));
  command->add_option("--threads", arguments->threads, "of the decode engine; 0: all cores")
      ->check(CLI::Range(0, 1024));
  command->add_option("--env-threads", plan.rollout.env_threads, "threads that run environments")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "one JSON object");
  command->add_flag("--rows", arguments->rows, "a JSON row for each episode");
  command->footer(
      "Intervals are at 95 %, over prompts: Wilson's for success and pass@k where each prompt has "
      "0 "
      "or 1 (one sample,\nor k = samples) or all have the same, else the bootstrap. pass@k is "
      "unbiased.\n"
      "The same seed gives the same episodes.\n\n"
      "Example:\n  tailrace eval --model runs/quickstart/checkpoints/step_000080 --env frozen_grid "
      "--episodes 512 --samples 4 --k 1 4");
  command->callback([arguments] { eval(*arguments); });
}

}  // namespace tailrace
