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
// Checks: every run trains all its steps; what `sync` trains on is of the step's own weights, to
// the bit.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "bench/report/interval.h"
#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

using Keys = std::vector<std::string>;

struct Arm {
  std::string name;
  Keys keys;
};

Arm stale(const std::string& name, int staleness, Keys keys) {
  keys.push_back("scheduler.mode=async");
  keys.push_back(fmt::format("scheduler.ahead={}", staleness));
  keys.push_back(fmt::format("scheduler.max_staleness={}", staleness));
  keys.push_back("scheduler.on_stale=mask");
  return {fmt::format("{}_{}", name, staleness), keys};
}

// The first is what the others are compared with.
const std::vector<Arm>& arms() {
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

struct Options {
  std::vector<std::string> arms, overrides;
  std::string out = "runs/reward";
  // The recipe was chosen on seeds below 20.
  int steps = 40, seeds = 10, first = 20;
  double margin = 0.05;
};

// What a run says of itself.
struct RewardRun {
  double before = 0, halfway = 0, final = 0;        // held-out reward
  double staleness = 0, masked = 0, effective = 0;  // means of the steps
  double staleness_max = 0, mismatch_max = 0;
  double seconds = 0;  // of the whole launch
};

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('=') + 1);
}

// A key is given once: of two values the later.
Keys joined(Keys keys, const Keys& more) {
  for (const std::string& assignment : more) {
    std::erase_if(keys, [&](const auto& key) { return key.starts_with(key_of(assignment)); });
    keys.push_back(assignment);
  }
  return keys;
}

double value_of(const MetricsRow& row, std::string_view name) {
  const double* value = row.find(name);
  return value == nullptr ? 0 : *value;
}

RewardRun read_run(const fs::path& directory, int steps) {
  RewardRun run;
  std::map<int64_t, double> evaluations;
  int num_steps = 0, num_updates = 0;
  for (const MetricsRow& row : metrics_of(directory)) {
    if (const double* reward = row.find("eval/reward")) evaluations[row.step] = *reward;
    if (row.find("staleness/mean") == nullptr) continue;
    ++num_steps;
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

// Makes the weights that all arms of a seed start from, and gives back their folder. They are saved
// before the one step that the run makes.
fs::path warm_up(const Options& options, const std::string& config, int seed) {
  const std::string name = fmt::format("warm_up-{}", seed);
  const fs::path directory = fs::absolute(options.out) / name;
  launch_run(name, config, directory,
             joined(options.overrides,
                    {"run.steps=1", "eval.prompts=0", fmt::format("run.seed={}", seed)}));
  return directory / "checkpoints" / "step_000000";
}

RewardRun run_arm(const Options& options, const std::string& config, const Arm& arm,
                  const fs::path& start, int seed) {
  const std::string name = fmt::format("{}-{}", arm.name, seed);
  const fs::path directory = fs::path(options.out) / name;
  Keys keys = joined(arm.keys, options.overrides);
  // What the warm-up was made with has no effect any more.
  std::erase_if(keys, [](const std::string& key) { return key.starts_with("sft."); });
  keys = joined(keys, {"model.create.hidden_size=0", fmt::format("model.path={}", start.string()),
                       "sft.demonstrations=0", fmt::format("run.steps={}", options.steps),
                       fmt::format("eval.interval_steps={}", std::max(1, options.steps / 2)),
                       fmt::format("run.seed={}", seed)});
  const Stopwatch watch;
  launch_run(name, config, directory, keys);
  const double seconds = watch.seconds();
  RewardRun run = read_run(directory, options.steps);
  run.seconds = seconds;
  require(&arm != &arms().front() || (run.staleness_max == 0 && run.mismatch_max == 0),
          "{} is off-policy: staleness {}, mismatch {}", name, run.staleness_max, run.mismatch_max);
  return run;
}

template <class Value>
std::vector<double> all(const std::vector<RewardRun>& runs, Value value) {
  std::vector<double> values;
  for (const RewardRun& run : runs) values.push_back(run.*value);
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

void report_arm(Report& report, const std::string& name, const std::vector<RewardRun>& runs,
                const std::vector<RewardRun>& baseline, double margin) {
  using R = RewardRun;
  report.add(name, "before", "reward", all(runs, &R::before));
  report.add(name, "final", "reward", all(runs, &R::final));
  report_interval(report, name, "final, mean (95 %)", mean_interval(all(runs, &R::final)));
  const std::string& sync = arms().front().name;
  if (name != sync) {
    const Interval difference = paired_interval(all(runs, &R::final), all(baseline, &R::final));
    report_interval(report, name, "halfway to sync (95 %)",
                    paired_interval(all(runs, &R::halfway), all(baseline, &R::halfway)));
    report_interval(report, name, "final to sync (95 %)", difference);
    report.note(describe(verdict(difference, margin), margin, sync));
  }
  report.add(name, "staleness, mean", "versions", all(runs, &R::staleness));
  report.add(name, "staleness, largest", "versions", all(runs, &R::staleness_max));
  report.add(name, "masked", "share", all(runs, &R::masked));
  report.add(name, "effective", "share", all(runs, &R::effective));
  report.add(name, "run", "s", all(runs, &R::seconds));
}

// Always with the first, in the order of the table.
std::vector<Arm> chosen(const std::vector<std::string>& names) {
  std::vector<Arm> some;
  for (const Arm& arm : arms()) {
    if (names.empty() || &arm == &arms().front() || std::ranges::count(names, arm.name) > 0)
      some.push_back(arm);
  }
  return some;
}

void check_overrides(const Keys& overrides) {
  for (const std::string& override : overrides) {
    const std::string key = key_of(override);
    if (key == "run.steps=" || key == "run.seed=")
      throw UserError("{} is for the bench to set; see --steps, --seeds and --first",
                      key.substr(0, key.size() - 1));
    if (key == "model.path=" || key == "sft.data=" || key == "eval.interval_steps=")
      throw UserError("{} is for the bench to set", key.substr(0, key.size() - 1));
  }
}

void measure(const Options& options, const Program& program) {
  check_overrides(options.overrides);
  std::error_code failed;
  fs::create_directories(options.out, failed);
  if (failed) throw UserError("cannot make {}: {}", options.out, failed.message());
  const fs::path config = fs::path(options.out) / "config.yaml";
  if (auto written = write_file_atomic(config, kConfig); !written)
    throw UserError("{}", written.failure().message);
  Settings settings = {{"steps", int64_t{options.steps}},
                       {"first_seed", int64_t{options.first}},
                       {"margin", options.margin}};
  for (const std::string& override : options.overrides) {
    const size_t equals = std::min(override.find('='), override.size());
    settings.emplace_back(override.substr(0, equals),
                          override.substr(std::min(equals + 1, override.size())));
  }
  Report report = program.report(settings);
  const std::vector<Arm> measured = chosen(options.arms);
  std::map<std::string, std::vector<RewardRun>> runs;
  // All arms of a seed before the next: whoever stops it early has whole pairs.
  for (int seed = options.first; seed < options.first + options.seeds; ++seed) {
    const fs::path start = warm_up(options, config.string(), seed);
    for (const Arm& arm : measured) {
      runs[arm.name].push_back(run_arm(options, config.string(), arm, start, seed));
      report.add(fmt::format("seed {}", seed), arm.name, "reward", {runs[arm.name].back().final});
    }
  }
  for (const Arm& arm : measured)
    report_arm(report, arm.name, runs[arm.name], runs[measured.front().name], options.margin);
}

std::vector<std::string> arm_names() {
  std::vector<std::string> names;
  for (const Arm& arm : arms()) names.push_back(arm.name);
  return names;
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
