// Does stale sampling cost final reward? Whole runs on the frozen grid of the quickstart, from the
// same seeds: `sync`, and `async` with `ahead` = `max_staleness` = 2 and 8 under each correction
// that is meant for it. All have one recipe, chosen for `sync` and not tuned for any other.
//
// A seed draws its own policy and demonstrations; its warm-up is made once, and every arm goes on
// from those weights. The last evaluation is of held-out grids that no arm trains on. Arms are
// compared in pairs of one seed, with a 95 % Student-t interval; an arm is equal when the whole
// interval lies within the margin. That is stricter than an interval that holds 0, which few or
// noisy runs give for nothing.
//
// `none_8` corrects nothing: the measure of what correction is worth.
//
// With `--modes` the arms are the modes of the scheduler on the two workloads of `bench modes`,
// which really wait: does a mode cost reward, by step and by second? Their staleness is what the
// mode makes of the workload and of the machine, and not forced.
//
// Checks: every run trains all its steps; what `sync` and `tail_batching` train on is of the step's
// own weights, to the bit.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/report/interval.h"
#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "bench/run/workloads.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

Arm stale(const std::string& name, int staleness, Keys keys) {
  keys.push_back("scheduler.mode=async");
  keys.push_back(fmt::format("scheduler.ahead={}", staleness));
  keys.push_back(fmt::format("scheduler.max_staleness={}", staleness));
  keys.push_back("scheduler.on_stale=mask");
  return {fmt::format("{}_{}", name, staleness), keys};
}

// The first is what the others are compared with.
const std::vector<Arm>& corrections() {
  static const std::vector<Arm> all = [] {
    std::vector<Arm> made = {{"sync", {"scheduler.mode=sync"}}};
    for (const int staleness : {2, 8}) {
      made.push_back(stale("tis", staleness, {}));  // the default correction
      made.push_back(stale("cispo", staleness, {"algo.surrogate=cispo"}));
      made.push_back(stale("decoupled_ppo", staleness, {"algo.name=decoupled_ppo"}));
      made.push_back(stale("topr", staleness, {"algo.name=topr"}));
    }
    made.push_back(stale("none", 8, {"algo.correction.kind=none"}));
    return made;
  }();
  return all;
}

// The quickstart's task and policy with half its prompts and half its steps, and its loss, but that
// groups without signal stay in the denominators: late in a run they are most of a step, and where
// they leave it, one lucky episode moves the weights as much as a whole step did before. Workers
// have room for all that `ahead` = 8 lets exist: what waited for room would be sampled by newer
// weights, and be less stale than the arm says.
constexpr const char* kConfig = R"(run: {name: bench_reward}
model:
  create: {hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, kv_heads: 2, max_positions: 256}
env: {name: frozen_grid}
rollout:
  prompts_per_step: 16
  group_size: 8
  max_turns: 14
  max_action_tokens: 3
  max_context_tokens: 256
  workers: 2
  max_sequences: 640
  threads: 1
sft:
  demonstrations: 10000
  epochs: 2
  batch_tokens: 2048
  optim: {lr: 8.0e-3, betas: [0.9, 0.95], weight_decay: 0.01, warmup_updates: 20, schedule: linear, min_lr_ratio: 0.05}
train: {minibatches_per_step: 2, microbatch_tokens: 4096, threads: 1}
algo:
  name: grpo
  std_eps: 1.0e-4
  clip_low: 0.2
  clip_high: 0.28
  filter_zero_signal: none
  loss_agg: token_mean_global
  kl: {coef: 0}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], warmup_updates: 5, schedule: linear, min_lr_ratio: 0.1}
eval: {prompts: 1024}
checkpoint: {interval_steps: 1000000}
)";

// What is compared: each arm with the first, on each workload.
struct Study {
  std::string config;
  std::vector<Arm> workloads;
  std::vector<Arm> arms;
};

// What the bound on staleness is worth: `async` by one step with several of them. What is sampled
// while weights change is older than `ahead` says, by as many versions as an episode lasts.
std::vector<Arm> modes_and_bounds() {
  std::vector<Arm> arms = paced_modes();
  for (const int bound : {1, 2, 3, 6})
    arms.push_back({fmt::format("async_1_within_{}", bound),
                    {"scheduler.mode=async", "scheduler.ahead=1",
                     fmt::format("scheduler.max_staleness={}", bound)}});
  return arms;
}

Study study_of(bool modes) {
  if (!modes) return {.config = kConfig, .workloads = {{"frozen_grid", {}}}, .arms = corrections()};
  Study study{.config = paced_config({.learning_rate = 1e-3}),
              .workloads = paced_workloads(),
              .arms = modes_and_bounds()};
  for (Arm& workload : study.workloads) workload.keys.push_back("eval.prompts=256");
  return study;
}

struct Options {
  std::vector<std::string> arms, workloads, overrides;
  std::string out = "runs/reward";
  // The recipe was chosen on seeds below 20.
  int steps = 40, seeds = 10, first = 20;
  double margin = 0.05;
  bool modes = false;
};

// What a run says of itself.
struct RewardRun {
  double before = 0, halfway = 0, final = 0;        // held-out reward
  double staleness = 0, masked = 0, effective = 0;  // means of the steps
  double staleness_max = 0, mismatch_max = 0;
  int steps = 0;
  double seconds = 0;  // from the first weights to the last publication

  double gain_per_step() const { return (final - before) / steps; }
  double gain_per_second() const { return (final - before) / seconds; }
};

RewardRun read_run(const fs::path& directory, int steps) {
  RewardRun run{.steps = steps};
  std::map<int64_t, double> evaluations;
  int num_steps = 0, num_updates = 0;
  for (const MetricsRow& row : metrics_of(directory)) {
    if (const double* reward = row.find("eval/reward")) evaluations[row.step] = *reward;
    if (row.find("staleness/mean") == nullptr) continue;
    ++num_steps;
    run.seconds += value_of(row, "time/step");
    run.staleness += value_of(row, "staleness/mean") / steps;
    run.masked += value_of(row, "staleness/masked_frac") / steps;
    run.staleness_max = std::max(run.staleness_max, value_of(row, "staleness/max"));
    // A step without any signal has no loss to measure.
    if (const double* effective = row.find("mismatch/ess_frac")) {
      ++num_updates;
      run.effective += *effective;
      run.mismatch_max = std::max(run.mismatch_max, std::abs(value_of(row, "mismatch/kl")));
    }
  }
  require(num_steps == steps, "{}: {} steps instead of {}", directory.string(), num_steps, steps);
  run.effective /= std::max(1, num_updates);
  for (const int step : {0, steps / 2, steps})
    require(evaluations.contains(step), "{}: no evaluation at step {}", directory.string(), step);
  run.before = evaluations[0];
  run.halfway = evaluations[steps / 2];
  run.final = evaluations[steps];
  return run;
}

// Makes the weights that all arms of a seed start from.
fs::path warm_up_seed(const Options& options, const std::string& config, const Arm& workload,
                      int seed) {
  const std::string name = fmt::format("{}-warm_up-{}", workload.name, seed);
  return warm_up(
      name, config, fs::path(options.out) / name,
      joined(joined(workload.keys, options.overrides), {fmt::format("run.seed={}", seed)}));
}

RewardRun run_arm(const Options& options, const std::string& config, const Arm& workload,
                  const Arm& arm, const fs::path& start, int seed) {
  const std::string name = fmt::format("{}-{}-{}", workload.name, arm.name, seed);
  const fs::path directory = fs::path(options.out) / name;
  launch_run(name, config, directory,
             joined(from_weights(joined(joined(workload.keys, arm.keys), options.overrides), start),
                    {fmt::format("run.steps={}", options.steps),
                     fmt::format("eval.interval_steps={}", std::max(1, options.steps / 2)),
                     fmt::format("run.seed={}", seed)}));
  const RewardRun run = read_run(directory, options.steps);
  require(!is_on_policy(arm.name) || (run.staleness_max == 0 && run.mismatch_max == 0),
          "{} is off-policy: staleness {}, mismatch {}", name, run.staleness_max, run.mismatch_max);
  return run;
}

template <class Value>
std::vector<double> all(const std::vector<RewardRun>& runs, Value value) {
  std::vector<double> values;
  for (const RewardRun& run : runs) values.push_back(std::invoke(value, run));
  return values;
}

// Of an interval the columns hold the mean and its two ends.
void report_interval(Report& report, const std::string& name, const std::string& metric,
                     const Interval& interval) {
  report.add(Row{.name = name,
                 .metric = metric,
                 .unit = "reward",
                 .value = {.median = interval.mean,
                           .min = interval.low,
                           .max = interval.high,
                           .runs = interval.runs},
                 .limit = {},
                 .facts = {}});
}

void report_verdict(Report& report, const Interval& difference, double margin) {
  std::string said = describe(verdict(difference, margin), margin, "sync");
  // Within the margin is no proof that there is no difference.
  if (difference.high < 0) said += ", and lower: 0 is above the whole interval";
  if (difference.low > 0) said += ", and higher: 0 is below the whole interval";
  if (const auto needed = runs_needed(difference, margin))
    said += fmt::format("; with this mean and spread {} seeds would say", *needed);
  report.note(said);
}

// `baseline`: of the same seeds, one by one; null for the baseline itself.
void report_arm(Report& report, const std::string& name, const std::vector<RewardRun>& runs,
                const std::vector<RewardRun>* baseline, double margin) {
  using R = RewardRun;
  report.add(name, "before", "reward", all(runs, &R::before));
  report.add(name, "final", "reward", all(runs, &R::final));
  report_interval(report, name, "final, mean (95 %)", mean_interval(all(runs, &R::final)));
  if (baseline != nullptr) {
    const Interval difference = paired_interval(all(runs, &R::final), all(*baseline, &R::final));
    report_interval(report, name, "halfway to sync (95 %)",
                    paired_interval(all(runs, &R::halfway), all(*baseline, &R::halfway)));
    report_interval(report, name, "final to sync (95 %)", difference);
    report_verdict(report, difference, margin);
  }
  report.add(name, "gain", "1/step", all(runs, &R::gain_per_step));
  report.add(name, "gain", "1/s", all(runs, &R::gain_per_second));
  report.add(name, "staleness, mean", "versions", all(runs, &R::staleness));
  report.add(name, "staleness, largest", "versions", all(runs, &R::staleness_max));
  report.add(name, "masked", "share", all(runs, &R::masked));
  report.add(name, "effective", "share", all(runs, &R::effective));
  report.add(name, "steps", "s", all(runs, &R::seconds));
}

void check_overrides(const Keys& overrides) {
  for (const std::string& override : overrides) {
    const std::string key = override.substr(0, override.find('='));
    if (key == "run.steps" || key == "run.seed")
      throw UserError("{} is for the bench to set; see --steps, --seeds and --first", key);
    if (key == "model.path" || key == "sft.data" || key == "eval.interval_steps")
      throw UserError("{} is for the bench to set", key);
  }
}

// Of both studies.
std::vector<std::string> arm_names() {
  std::vector<std::string> names = names_of(corrections());
  for (const Arm& mode : modes_and_bounds())
    if (std::ranges::count(names, mode.name) == 0) names.push_back(mode.name);
  return names;
}

void check_arms(const Study& study, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (std::ranges::count(study.arms, name, &Arm::name) == 0)
      throw UserError("--arms: {} is not among {}", name, fmt::join(names_of(study.arms), ", "));
}

void measure(const Options& options, const Program& program) {
  check_overrides(options.overrides);
  const Study study = study_of(options.modes);
  check_arms(study, options.arms);
  const std::string baseline = study.arms.front().name;
  const std::string config = write_config(options.out, "config.yaml", study.config);
  Settings settings = {{"steps", int64_t{options.steps}},
                       {"first_seed", int64_t{options.first}},
                       {"margin", options.margin}};
  add_settings(settings, options.overrides);
  Report report = program.report(settings);
  std::vector<std::string> names = options.arms;
  if (!names.empty()) names.push_back(baseline);
  const std::vector<Arm> measured = chosen(study.arms, names);
  // By arm and seed, the sum over the workloads.
  std::map<std::string, std::vector<double>> finals;
  const std::vector<Arm> workloads = chosen(study.workloads, options.workloads);
  for (const Arm& workload : workloads) {
    std::map<std::string, std::vector<RewardRun>> runs;
    // All arms of a seed before the next: whoever stops it early has whole pairs.
    for (int seed = options.first; seed < options.first + options.seeds; ++seed) {
      const fs::path start = warm_up_seed(options, config, workload, seed);
      for (const Arm& arm : measured) {
        runs[arm.name].push_back(run_arm(options, config, workload, arm, start, seed));
        report.add(fmt::format("{}, seed {}", workload.name, seed), arm.name, "reward",
                   {runs[arm.name].back().final});
      }
    }
    for (const Arm& arm : measured) {
      report_arm(report, fmt::format("{}, {}", workload.name, arm.name), runs[arm.name],
                 arm.name == baseline ? nullptr : &runs[baseline], options.margin);
      const std::vector<double> final = all(runs[arm.name], &RewardRun::final);
      finals[arm.name].resize(final.size());
      for (size_t i = 0; i < final.size(); ++i)
        finals[arm.name][i] += final[i] / static_cast<double>(workloads.size());
    }
  }
  if (workloads.size() < 2) return;
  // What is small and of one sign on each workload may be seen on all of them together. A seed has
  // the same policy on each, so it counts once.
  for (const Arm& arm : measured) {
    if (arm.name == baseline) continue;
    const Interval difference = paired_interval(finals[arm.name], finals[baseline]);
    report_interval(report, "all workloads, " + arm.name, "final to sync (95 %)", difference);
    report_verdict(report, difference, options.margin);
  }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("reward", TAILRACE_MEASURES, "reward --arms tis_8,none_8 --seeds 5");
  program.fix_threads(0);  // processes of their own
  program.flags().option("overrides", options.overrides, {.help = "key=value ... of every run"});
  program.flags().option(
      "--arms", options.arms,
      {.help = "which besides sync, with commas between; all without", .one_of = arm_names()});
  program.flags().option("--modes", options.modes,
                         {.help = "the modes of the scheduler on the workloads of bench modes, "
                                  "instead of corrections of stale samples"});
  program.flags().option("--workloads", options.workloads,
                         {.help = "with --modes: which, with commas between; all without",
                          .one_of = names_of(paced_workloads()),
                          .needs = "--modes"});
  program.flags().option("--steps", options.steps,
                         {.help = "of each run", .min = 1, .max = 1'000'000});
  program.flags().option("--seeds", options.seeds,
                         {.help = "how many, from --first on", .min = 2, .max = 10000});
  program.flags().option("--first", options.first, {.help = "first seed", .max = 1 << 30});
  program.flags().option("--margin", options.margin,
                         {.help = "a difference of mean reward that does not matter", .max = 1e9});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
