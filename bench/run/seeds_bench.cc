// Whole runs of one config, one a seed, in directories of their own: does the recipe learn every
// time, and how long does it take?
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "bench/run/plot.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string out = "runs/seeds", plot;
  int seeds = 10, first = 0;
  bool resume = false;
};

// What a run says of itself on held-out episodes; invalid: the share of its actions.
struct Evaluation {
  double success = 0, invalid = 0;
};
using Curve = std::vector<std::pair<double, double>>;  // by step
struct SeedRun {
  int seed = 0;
  Evaluation before, after;
  std::optional<double> seconds;  // of the whole launch, where it began the run
  Curve held_out, trained;  // success of episodes that are evaluated, and of those that are trained
};

SeedRun read_run(const fs::path& directory) {
  SeedRun run;
  for (const MetricsRow& row : metrics_of(directory)) {
    const auto step = static_cast<double>(row.step);
    if (const double* trained = row.find("env/success")) run.trained.emplace_back(step, *trained);
    const double* success = row.find("eval/success");
    if (success == nullptr) continue;
    const double* invalid = row.find("eval/invalid_actions");
    const double* turns = row.find("eval/turns/mean");
    // The metric is per episode: by turns it is a share of actions.
    run.after = {.success = *success, .invalid = invalid && turns ? *invalid / *turns : 0};
    if (run.held_out.empty()) run.before = run.after;
    run.held_out.emplace_back(step, *success);
  }
  if (run.held_out.empty())
    throw UserError("{}: no evaluation in metrics.jsonl; set eval.prompts in the config",
                    directory.string());
  return run;
}

SeedRun run_seed(const Options& options, int seed) {
  const fs::path directory = fs::path(options.out) / fmt::format("seed-{}", seed);
  std::vector<std::string> overrides = options.overrides;
  overrides.push_back(fmt::format("run.seed={}", seed));
  const Stopwatch watch;
  const std::string name = fmt::format("seed {}", seed);
  const bool was_there = fs::exists(directory);
  if (options.resume)
    continue_run(name, options.config, directory, overrides);
  else
    launch_run(name, options.config, directory, overrides);
  const double seconds = watch.seconds();
  SeedRun run = read_run(directory);
  run.seed = seed;
  if (!was_there) run.seconds = seconds;
  return run;
}

// One row for each thing that a run says; of many runs their spread.
void report_runs(Report& report, const std::string& name, const std::vector<SeedRun>& runs) {
  const auto add = [&](const char* metric, const char* unit, auto value_of) {
    std::vector<double> values;
    for (const SeedRun& run : runs) values.push_back(value_of(run));
    report.add(name, metric, unit, values);
  };
  add("success before RL", "share", [](const SeedRun& run) { return run.before.success; });
  add("success after RL", "share", [](const SeedRun& run) { return run.after.success; });
  add("invalid before RL", "share", [](const SeedRun& run) { return run.before.invalid; });
  add("invalid after RL", "share", [](const SeedRun& run) { return run.after.invalid; });
  std::vector<double> seconds;
  for (const SeedRun& run : runs)
    if (run.seconds) seconds.push_back(*run.seconds);
  if (!seconds.empty()) report.add(name, "run", "s", seconds);
}

// One chart for held-out episodes and one for those of training, with a line for each seed.
std::vector<Chart> charts_of(const std::vector<SeedRun>& runs) {
  const auto chart = [&](const char* title, Curve SeedRun::*curve, bool smooth) {
    Chart made{.title = title, .y_min = 0, .y_max = 1};
    for (const SeedRun& run : runs)
      made.series.push_back({.name = fmt::format("seed {}", run.seed),
                             .points = run.*curve,
                             .color = (run.seed - runs.front().seed) % 4,
                             .markers = !smooth,
                             .smooth = smooth});
    return made;
  };
  return {chart("success, held-out", &SeedRun::held_out, false),
          chart("success, training", &SeedRun::trained, true)};
}

void measure(const Options& options, const Program& program) {
  check_plot(options.plot);
  std::error_code failed;
  fs::create_directories(options.out, failed);
  if (failed) throw UserError("cannot make {}: {}", options.out, failed.message());
  Settings settings = {{"config", options.config}};
  add_settings(settings, options.overrides);
  Report report = program.report(settings);
  std::vector<SeedRun> runs;
  for (int seed = options.first; seed < options.first + options.seeds; ++seed) {
    runs.push_back(run_seed(options, seed));
    report_runs(report, fmt::format("seed {}", seed), {runs.back()});
  }
  report_runs(report, "all seeds", runs);
  if (!options.plot.empty()) write_plot(options.plot, charts_of(runs));
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("seeds", TAILRACE_MEASURES,
                  "seeds configs/quickstart.yaml --seeds 3 run.steps=20");
  program.fix_threads(0);  // the config's business
  program.flags().option("config", options.config, {.help = "the config", .required = true});
  program.flags().option("overrides", options.overrides, {.help = "key=value ..."});
  program.flags().option("--seeds", options.seeds,
                         {.help = "how many, from --first on", .min = 1, .max = 10000});
  program.flags().option("--first", options.first, {.help = "first seed", .max = 1 << 30});
  program.flags().option("--resume", options.resume,
                         {.help = "runs that are there already go on; those are not timed"});
  program.flags().option("--plot", options.plot,
                         {.help = "an SVG of success over the steps", .value = "FILE"});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
