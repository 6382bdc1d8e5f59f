// Does each algorithm learn? Whole runs with each preset of `algo.name`, on a task of one turn and
// on one of several, all from one warm-up checkpoint of the task. A preset is given by its name
// alone: every other key is the same for all.
//
//   single_turn  countdown with two numbers up to 9: `numbers 3 7 target 21 > <answer> 3 * 7
//                </answer>`
//   multi_turn   the frozen grid of configs/quickstart.yaml, up to 14 turns
//
// The warm-up leaves a held-out success of 0.3 to 0.4. An algorithm whose message refuses the task
// is shown with it. "Beats the start" is said where the 95 %
// interval of final less start lies above 0: over seeds a paired Student-t interval, with one seed
// 1.96 binomial errors of the two evaluations. What does not beat the start gets a sentence from
// its metrics (bench/run/learning.h).
//
// The case `lite_ppo` is the comparison of 2508.08221: its algorithm beside GRPO and DAPO in its
// own setting, without a KL term and with samples drawn at temperature 0.99 and top_p 0.99; paired
// differences of final success.
//
// Checks: every run that is not refused ends well and makes all its steps.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/report/interval.h"
#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "bench/run/learning.h"
#include "bench/run/plot.h"
#include "core/base/enum_names.h"
#include "core/base/error.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// No key of `algo` is here.
constexpr const char* kConfig = R"(run: {name: bench_algorithms}
model:
  create: {hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, kv_heads: 2, max_positions: 256}
env: {name: frozen_grid}
rollout: {group_size: 8, max_context_tokens: 256, workers: 2, threads: 1}
sft:
  demonstrations: 10000
  batch_tokens: 2048
  optim: {lr: 8.0e-3, betas: [0.9, 0.95], weight_decay: 0.01, warmup_updates: 20, schedule: linear, min_lr_ratio: 0.05}
train: {minibatches_per_step: 2, microbatch_tokens: 4096, threads: 1}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], warmup_updates: 5, schedule: linear, min_lr_ratio: 0.1}
eval: {prompts: 512}
checkpoint: {interval_steps: 1000000}
)";

struct Task {
  std::string name;
  Keys keys;
};

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"single_turn",
       {"env.name=countdown", "env.settings.min_numbers=2", "env.settings.max_numbers=2",
        "env.settings.max_number=9", "env.settings.max_target=81", "rollout.prompts_per_step=32",
        "sft.epochs=1"}},
      {"multi_turn",
       {"rollout.prompts_per_step=16", "rollout.max_turns=14", "rollout.max_action_tokens=3",
        "sft.epochs=2"}}};
  return all;
}

enum class Case { kPresets, kLitePpo };
constexpr auto enum_names(Case) {
  return name_table<Case>({{Case::kPresets, "presets"}, {Case::kLitePpo, "lite_ppo"}});
}

struct Options {
  std::vector<std::string> tasks, only, overrides;
  std::string out = "runs/algorithms", plot;
  Case comparison = Case::kPresets;
  int steps = 60, seeds = 3, first = 0;
  bool quick = false;
};

// With --quick.
constexpr int kQuickSteps = 40;
constexpr int kEvaluations = 5;  // after the start

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const std::string_view name : kEnumNames<AlgoPreset>)
    if (name != name_of(AlgoPreset::kDefault)) names.emplace_back(name);
  return names;
}

// The algorithms of a case, and the keys that all of them have.
std::vector<std::string> algorithms_of(Case comparison) {
  if (comparison == Case::kLitePpo) return {"lite_ppo", "grpo", "dapo"};
  return preset_names();
}

Keys keys_of(Case comparison) {
  if (comparison == Case::kLitePpo)
    return {"algo.kl.coef=0", "rollout.sampling.temperature=0.99", "rollout.sampling.top_p=0.99"};
  return {};
}

// What became of an algorithm on a task: runs by seed with the seconds of each launch, and final
// less start; or the message that refuses it.
struct Algorithm {
  std::string name;
  std::map<int, Learning> runs = {};
  std::vector<double> seconds = {};
  std::string refusal = {};
  std::optional<Interval> gained = {};

  bool beats() const { return gained && gained->low > 0; }
};

template <class Value>
std::vector<double> all(const Algorithm& algorithm, Value value) {
  std::vector<double> values;
  for (const auto& [seed, run] : algorithm.runs) values.push_back(value(run));
  return values;
}

std::vector<double> starts(const Algorithm& algorithm) {
  return all(algorithm, [](const Learning& run) { return run.start(); });
}
std::vector<double> finals(const Algorithm& algorithm) {
  return all(algorithm, [](const Learning& run) { return run.final(); });
}

// Final less start: over the seeds, or of the evaluations of the only one.
Interval gain(const Algorithm& algorithm) {
  if (algorithm.runs.size() > 1) return paired_interval(finals(algorithm), starts(algorithm));
  const Learning& run = algorithm.runs.begin()->second;
  const double mean = run.final() - run.start(), half = 1.96 * binomial_error(run);
  return {.mean = mean, .low = mean - half, .high = mean + half, .runs = 1};
}

// The worst of the runs says it.
std::string why_not(const Algorithm& algorithm) {
  const auto worst = std::ranges::min_element(
      algorithm.runs, {}, [](const auto& entry) { return entry.second.final(); });
  return why_not(worst->second);
}

std::string verdict_of(const Algorithm& algorithm) {
  if (!algorithm.refusal.empty()) return "refused";
  if (algorithm.beats()) return "beats the start";
  return algorithm.gained->high < 0 ? "below the start" : "does not beat the start";
}

void report_interval(Report& report, const std::string& name, const std::string& metric,
                     const Interval& interval, Facts facts = {}) {
  report.add(Row{.name = name,
                 .metric = metric,
                 .unit = "share",
                 .value = {.median = interval.mean,
                           .min = interval.low,
                           .max = interval.high,
                           .runs = interval.runs},
                 .limit = {},
                 .facts = std::move(facts)});
}

void report_algorithm(Report& report, const std::string& task, const Algorithm& algorithm) {
  const std::string name = fmt::format("{}, {}", task, algorithm.name);
  const std::string verdict = verdict_of(algorithm);
  if (!algorithm.refusal.empty()) {
    report.add(Row{.name = name,
                   .metric = "refused",
                   .unit = "runs",
                   .value = spread({0}),
                   .limit = {},
                   .facts = {{"verdict", verdict}, {"why", algorithm.refusal}}});
    report.note(fmt::format("{}: {}", verdict, algorithm.refusal));
    return;
  }
  const std::string why = algorithm.beats() ? "" : why_not(algorithm);
  report.add(name, "start", "share", starts(algorithm));
  report.add(name, "final", "share", finals(algorithm));
  report.add(name, "final, reward", "reward",
             all(algorithm, [](const Learning& run) { return run.reward.back().second; }));
  report_interval(report, name, "gain (95 %)", *algorithm.gained,
                  {{"verdict", verdict}, {"why", why}});
  report.add(name, "steps", "steps",
             all(algorithm, [](const Learning& run) { return static_cast<double>(run.steps); }));
  report.add(name, "run", "s", algorithm.seconds);
  report.note(why.empty() ? verdict : fmt::format("{}: {}", verdict, why));
}

// One task of a case, with the runs of all its algorithms.
class TaskRuns {
 public:
  TaskRuns(const Options& options, const Task& task, const std::string& config)
      : options_(options), task_(task), config_(config) {
    keys_ = joined(joined(task.keys, keys_of(options.comparison)), options.overrides);
    // What a person says of the algorithms is said to each of them.
    Keys warm_up_keys = joined(task.keys, options.overrides);
    std::erase_if(warm_up_keys, [](const std::string& key) { return key.starts_with("algo."); });
    const std::string name = task.name + "-warm_up";
    weights_ = warm_up(name, config, fs::path(options.out) / name,
                       joined(warm_up_keys, {fmt::format("run.seed={}", options.first)}));
  }

  Algorithm run(const std::string& algorithm) const {
    Algorithm runs{.name = algorithm};
    const Keys keys =
        joined(from_weights(keys_, weights_),
               {"algo.name=" + algorithm, fmt::format("run.steps={}", options_.steps),
                fmt::format("eval.interval_steps={}", std::max(1, options_.steps / kEvaluations))});
    runs.refusal = refusal(config_, keys);
    if (!runs.refusal.empty()) return runs;
    for (int seed = options_.first; seed < options_.first + options_.seeds; ++seed) {
      const std::string name = fmt::format("{}-{}-{}", task_.name, algorithm, seed);
      const fs::path directory = fs::path(options_.out) / name;
      const Stopwatch watch;
      launch_run(name, config_, directory, joined(keys, {fmt::format("run.seed={}", seed)}));
      runs.seconds.push_back(watch.seconds());
      Learning run = read_learning(metrics_of(directory));
      require(run.steps == options_.steps, "{}: {} steps instead of {}", name, run.steps,
              options_.steps);
      require(run.success.front().first == 0 && run.success.back().first == options_.steps,
              "{}: it was not evaluated at its start and at its end", name);
      runs.runs.emplace(seed, std::move(run));
    }
    runs.gained = gain(runs);
    return runs;
  }

 private:
  const Options& options_;
  const Task& task_;
  std::string config_;
  Keys keys_;
  fs::path weights_;
};

// The first algorithm of the case against the others, in pairs of one seed.
void report_pairs(Report& report, const std::string& task, const std::vector<Algorithm>& runs) {
  const Algorithm& first = runs.front();
  for (const Algorithm& other : runs) {
    if (&other == &first || first.runs.size() < 2 || other.runs.size() != first.runs.size())
      continue;
    report_interval(report, fmt::format("{}, {}", task, first.name),
                    fmt::format("less {} (95 %)", other.name),
                    paired_interval(finals(first), finals(other)));
  }
}

std::vector<std::pair<double, double>> mean_curve(const Algorithm& algorithm) {
  std::vector<std::pair<double, double>> mean;
  for (const auto& [seed, run] : algorithm.runs) {
    mean.resize(std::max(mean.size(), run.success.size()));
    for (size_t i = 0; i < run.success.size(); ++i) {
      mean[i].first = run.success[i].first;
      mean[i].second += run.success[i].second / static_cast<double>(algorithm.runs.size());
    }
  }
  return mean;
}

// A small chart for each algorithm, with a line for each task.
std::vector<Chart> charts_of(const std::vector<std::string>& names,
                             const std::map<std::string, std::vector<Algorithm>>& runs) {
  std::vector<Chart> charts;
  for (size_t i = 0; i < names.size(); ++i) {
    Chart& chart = charts.emplace_back(
        Chart{.title = names[i], .y_min = 0, .y_max = 1, .width = 300, .height = 190});
    int color = 0;
    for (const auto& [task, algorithms] : runs)
      chart.series.push_back(
          {.name = task, .points = mean_curve(algorithms[i]), .color = color++, .markers = true});
  }
  return charts;
}

std::string summary_of(const std::string& task, const std::vector<Algorithm>& runs) {
  std::vector<std::string> others;
  for (const Algorithm& algorithm : runs)
    if (!algorithm.beats())
      others.push_back(fmt::format("{} ({})", algorithm.name, verdict_of(algorithm)));
  const size_t beat = runs.size() - others.size();
  return fmt::format("{}: {} of {} beat the start{}", task, beat, runs.size(),
                     others.empty() ? "" : fmt::format("; not {}", fmt::join(others, ", ")));
}

void check_overrides(const Keys& overrides) {
  for (const std::string& override : overrides) {
    const std::string key = override.substr(0, override.find('='));
    if (key == override) throw UserError("'{}' is no override: write section.key=value", override);
    if (key == "run.steps" || key == "run.seed" || key == "algo.name")
      throw UserError("{} is for the bench to set; see --steps, --seeds, --first and --only", key);
    if (key == "model.path" || key == "sft.data" || key == "eval.interval_steps")
      throw UserError("{} is for the bench to set", key);
  }
}

bool is_chosen(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::ranges::count(names, name) > 0;
}

void measure(const Options& options, const Program& program) {
  check_overrides(options.overrides);
  check_plot(options.plot);
  const std::string config = write_config(options.out, "config.yaml", kConfig);
  Settings settings = {{"case", std::string(name_of(options.comparison))},
                       {"steps", int64_t{options.steps}},
                       {"seeds", int64_t{options.seeds}},
                       {"first_seed", int64_t{options.first}}};
  add_settings(settings, options.overrides);
  Report report = program.report(settings);
  std::vector<std::string> names;
  for (const std::string& name : algorithms_of(options.comparison))
    if (is_chosen(options.only, name)) names.push_back(name);
  if (names.empty())
    throw UserError("--only names no algorithm of the case {}; it has {}",
                    name_of(options.comparison),
                    fmt::join(algorithms_of(options.comparison), ", "));
  std::map<std::string, std::vector<Algorithm>> runs;
  std::vector<std::string> summaries;
  for (const Task& task : tasks()) {
    if (!is_chosen(options.tasks, task.name)) continue;
    const TaskRuns task_runs(options, task, config);
    std::vector<Algorithm>& of_task = runs[task.name];
    for (const std::string& name : names) {
      of_task.push_back(task_runs.run(name));
      report_algorithm(report, task.name, of_task.back());
    }
    if (options.comparison != Case::kPresets) report_pairs(report, task.name, of_task);
    summaries.push_back(summary_of(task.name, of_task));
  }
  for (const std::string& summary : summaries) report.note(summary);
  if (!options.plot.empty()) write_plot(options.plot, charts_of(names, runs));
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) names.push_back(task.name);
  return names;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("algorithms", TAILRACE_MEASURES,
                  "algorithms --quick --only grpo,gspo --plot algorithms.svg");
  program.fix_threads(0);  // processes of their own
  Command& flags = program.flags();
  flags.option("overrides", options.overrides, {.help = "key=value ... of every run"});
  flags.option("--case", options.comparison,
               {.help = "presets: each algorithm by its name; lite_ppo: that one beside grpo and "
                        "dapo in its paper's setting"});
  flags.option("--tasks", options.tasks,
               {.help = "which, with commas between; all without", .one_of = task_names()});
  flags.option("--only", options.only,
               {.help = "algorithms, with commas between; all without", .one_of = preset_names()});
  flags.option("--steps", options.steps, {.help = "of each run", .min = 1, .max = 1'000'000});
  flags.option("--seeds", options.seeds,
               {.help = "how many, from --first on", .min = 1, .max = 10000});
  flags.option("--first", options.first, {.help = "first seed", .max = 1 << 30});
  flags.option(
      "--quick", options.quick,
      {.help = fmt::format("one seed, {} steps", kQuickSteps), .excludes = {"--steps", "--seeds"}});
  flags.option("--plot", options.plot,
               {.help = "an SVG of held-out success over the steps", .value = "FILE"});
  flags.option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] {
    if (options.quick) options.seeds = 1, options.steps = kQuickSteps;
    measure(options, program);
  });
}
