#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench_rl_step.h"
#include "cli/bench_seeds.h"
#include "cli/commands.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

struct Spread {
  double min = 0, median = 0, max = 0;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

void print_rl_step(const RlStepCase& setup, bool json) {
  RlStepReport report = bench_rl_step(setup);
  const std::vector<std::pair<std::string, std::vector<double>>> phases = {
      {"generate", report.generate_s},
      {"reward", report.reward_s},
      {"train", report.train_s},
      {"install", report.install_s},
      {"total", report.total_s}};
  int64_t samples = setup.prompts * setup.group_size;
  double total = spread(report.total_s).median;
  if (json) {
    nlohmann::ordered_json out = {{"case",
                                   {{"samples", samples},
                                    {"prompts", setup.prompts},
                                    {"prompt_tokens", setup.prompt_tokens},
                                    {"max_new_tokens", setup.max_new_tokens},
                                    {"mean_new_tokens", report.mean_new_tokens},
                                    {"parameters", report.parameters},
                                    {"threads", setup.threads},
                                    {"dtype", "fp32"},
                                    {"steps", setup.steps}}}};
    for (const auto& [phase, values] : phases) {
      Spread s = spread(values);
      out["seconds"][phase] = {{"median", s.median}, {"min", s.min}, {"max", s.max}};
    }
    out["samples_per_s"] = static_cast<double>(samples) / total;
    out["decode_tokens_per_s"] = report.decode_tokens_per_s;
    out["train_gflops"] = report.train_gflops;
    out["mismatch_abs_max"] = report.mismatch_abs_max;
    fmt::print("{}\n", out.dump());
    return;
  }
  fmt::print(
      "rl-step: {} samples ({} prompts x {}), prompt {}, at most {} new tokens (mean {:.1f}), "
      "{:.2f} M parameters, "
      "fp32, {} threads, {} steps\n",
      samples, setup.prompts, setup.group_size, setup.prompt_tokens, setup.max_new_tokens,
      report.mean_new_tokens, static_cast<double>(report.parameters) / 1e6, setup.threads,
      setup.steps);
  fmt::print("{:<10} {:>10} {:>10} {:>10} {:>7}\n", "phase", "median ms", "min", "max", "share");
  for (const auto& [phase, values] : phases) {
    Spread s = spread(values);
    fmt::print("{:<10} {:>10.2f} {:>10.2f} {:>10.2f} {:>6.0f}%\n", phase, s.median * 1e3,
               s.min * 1e3, s.max * 1e3, 100 * s.median / total);
  }
  fmt::print(
      "{:.0f} samples/s, {:.0f} sampled tokens/s while generating, {:.0f} GFLOP/s while training "
      "(6N a token), "
      "largest |sampled - recomputed log-prob| {}\n",
      static_cast<double>(samples) / total, report.decode_tokens_per_s, report.train_gflops,
      report.mismatch_abs_max);
}

void print_seeds(const SeedsCase& setup, bool json) {
  SeedsReport report = bench_seeds(setup, [&](const SeedRun& run) {
    if (!json)
      fmt::print(
          "seed {:>3}: success {:.3f} -> {:.3f}, invalid actions {:.2f} % -> {:.2f} %, {:.0f} s\n",
          run.seed, run.success_first, run.success_last, 100 * run.invalid_first,
          100 * run.invalid_last, run.seconds);
    std::fflush(stdout);
  });
  if (json) {
    nlohmann::ordered_json out = {{"config", setup.config}};
    for (const auto& run : report.runs)
      out["runs"].push_back({{"seed", run.seed},
                             {"success_first", run.success_first},
                             {"success_last", run.success_last},
                             {"invalid_first", run.invalid_first},
                             {"invalid_last", run.invalid_last},
                             {"seconds", run.seconds}});
    fmt::print("{}\n", out.dump());
    return;
  }
  std::vector<double> first, last, seconds;
  for (const auto& run : report.runs) {
    first.push_back(run.success_first);
    last.push_back(run.success_last);
    seconds.push_back(run.seconds);
  }
  fmt::print(
      "{} seeds: success {:.3f} -> {:.3f} (median), worst at the end {:.3f}, {:.0f} s a run "
      "(median)\n",
      report.runs.size(), spread(first).median, spread(last).median, spread(last).min,
      spread(seconds).median);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench =
      app.add_subcommand("bench", "Measure: an RL step by phase, or a recipe over several seeds.");
  bench->footer("Example: tailrace bench rl-step --json");
  bench->require_subcommand(1);

  static RlStepCase rl_step;
  static bool rl_json = false;
  auto* step = bench->add_subcommand("rl-step",
                                     "One RL step (generate, reward, train, install) of a tiny "
                                     "Llama: 64 samples, prompt 21, at most 32 new tokens.");
  step->footer("Example: tailrace bench rl-step --threads 2 --json");
  step->add_option("--threads", rl_step.threads,
                   "threads of the trainer, and decode engines of one thread each")
      ->check(CLI::Range(1, 256));
  step->add_option("--steps", rl_step.steps, "measured steps")->check(CLI::Range(1, 100000));
  step->add_flag("--json", rl_json, "one JSON object instead of a table");
  step->callback([] { print_rl_step(rl_step, rl_json); });

  static SeedsCase seeds;
  static bool seeds_json = false;
  auto* runs = bench->add_subcommand(
      "seeds", "Whole runs of a config, one a seed, in directories of their own.");
  runs->footer("Example: tailrace bench seeds configs/quickstart.yaml --seeds 10");
  runs->add_option("config", seeds.config, "the config")->required();
  runs->add_option("overrides", seeds.overrides, "key=value ...");
  runs->add_option("--seeds", seeds.num_seeds, "how many, from --first on")
      ->check(CLI::Range(1, 10000));
  runs->add_option("--first", seeds.first_seed, "first seed");
  runs->add_option("--out", seeds.out, "where the run directories go");
  runs->add_flag("--json", seeds_json, "one JSON object instead of a table");
  runs->callback([] { print_seeds(seeds, seeds_json); });
}

}  // namespace tailrace
