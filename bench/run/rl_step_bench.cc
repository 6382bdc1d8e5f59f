// One RL step (generate, reward, train, install) of a tiny Llama, by phase.
#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/run/rl_step.h"

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

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  CLI::App app("One RL step of a tiny Llama: 64 samples, prompt 21, at most 32 new tokens.",
               "rl-step");
  RlStepCase setup;
  bool json = false;
  app.add_option("--threads", setup.threads,
                 "threads of the trainer, and decode engines of one thread each")
      ->check(CLI::Range(1, 256));
  app.add_option("--steps", setup.steps, "measured steps")->check(CLI::Range(1, 100000));
  app.add_flag("--json", json, "one JSON object instead of a table");
  CLI11_PARSE(app, argc, argv);
  print_rl_step(setup, json);
  return 0;
}
