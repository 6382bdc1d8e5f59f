// What a mode of the scheduler is worth: whole runs that differ in `scheduler.mode` and its knobs
// alone, on two workloads of the environment `paced`.
//
//   length_tailed     lengths as published for a 14B model on mathematics with a limit of 16k
//   tokens
//                     (RollPacker, arXiv 2509.21009, figure 2: median about 520 tokens, the longest
//                     31 times that), fitted by log-normals over prompts (0.65) and members (1.13)
//                     and by prompts some of whose members run to the limit (1.4 % of all), a turn
//                     standing for 88 tokens; each turn takes the same few milliseconds, as a token
//                     of a large model does however many are decoded beside it (on a CPU a lone
//                     sequence is fast, and a tail would cost nothing)
//   latency_injected  equal turns, each of a log-normal time, by member
//
// All modes have the same room, rollout.max_sequences of all workers together: `--room` steps of
// `sync`. That makes the ceiling a number. Of the time that this room is there while `sync` makes
// its steps, the share in which it holds no episode is idle, and a mode that left none of it idle
// would make 1 / (1 - idle) times the tokens a second, if an episode took the time that it takes in
// `sync`. Nor can there be more steps than the trainer makes: `limit` is the lesser of that and of
// `time/step` of `sync` over its `time/train`. Modes that are on-policy cannot reach it: while a
// step is trained no room is of use to them.
//
// In the JSON form each run is an object as well, whose keys behind the common ones are `workload`,
// `mode`, `seconds`, `reward`, `rollout_tokens_per_s`, `staleness_max`, `mismatch_max` and `idle`:
// by cause, the shares of the rollout workers' places (of those ever in use at once) that waited.
//
// Checks: every run trains all its steps; what `sync` and `tail_batching` train on is of the step's
// own weights, without any mismatch.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "cli/view/worker_use.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/run_directory.h"
#include "core/trajectory/timeline_rows.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int kPrompts = 16, kGroup = 4, kWorkers = 2;

struct Choice {
  std::string name;
  std::vector<std::string> keys;
};

const std::vector<Choice>& workloads() {
  static const std::vector<Choice> all = {
      {"length_tailed",
       {"env.settings.turns_sigma=0.65", "env.settings.member_turns_sigma=1.13",
        "env.settings.endless_prompts=0.18", "env.settings.endless_members=0.08",
        "env.settings.max_turns=186", "env.settings.latency_ms=8"}},
      {"latency_injected",
       {"env.settings.latency_ms=12", "env.settings.latency_sigma=1.5",
        "env.settings.max_latency_ms=600"}}};
  return all;
}

const std::vector<Choice>& modes() {
  static const std::vector<Choice> all = {
      {"sync", {"scheduler.mode=sync"}},
      {"tail_batching", {"scheduler.mode=tail_batching"}},
      {"partial", {"scheduler.mode=partial"}},
      {"async_0.5", {"scheduler.mode=async", "scheduler.ahead=0.5"}},
      {"async_1", {"scheduler.mode=async", "scheduler.ahead=1"}},
      {"async_2", {"scheduler.mode=async", "scheduler.ahead=2"}},
      {"streaming", {"scheduler.mode=streaming"}},
      {"async_1_redundant",
       {"scheduler.mode=async", "scheduler.ahead=1", "scheduler.launch_members_ratio=1.25"}}};
  return all;
}

bool is_on_policy(const std::string& mode) { return mode == "sync" || mode == "tail_batching"; }

// What all runs share. Training is small beside sampling, and has one thread: two of them meet at
// barriers, where what else runs on the machine would be measured.
std::string config_text(int room) {
  return fmt::format(R"(run: {{name: bench_modes}}
model:
  create: {{hidden_size: 64, intermediate_size: 192, layers: 2, heads: 4, kv_heads: 2, max_positions: 1024}}
env: {{name: paced, settings: {{turns: 6}}}}
rollout:
  prompts_per_step: {}
  group_size: {}
  workers: {}
  max_sequences: {}
  max_context_tokens: 1024
  threads: 1
sft:
  demonstrations: 500
  epochs: 1
  batch_tokens: 2048
  optim: {{lr: 8.0e-3, warmup_updates: 5}}
train: {{microbatch_tokens: 4096, threads: 1}}
algo: {{name: grpo}}
optim: {{lr: 1.0e-3, warmup_updates: 2}}
eval: {{prompts: 0}}
checkpoint: {{interval_steps: 1000000}}
)",
                     kPrompts, kGroup, kWorkers, room * kPrompts * kGroup / kWorkers);
}

struct Options {
  std::vector<std::string> workloads, modes, overrides;
  std::string out = "runs/modes";
  int steps = 24, runs = 1, first = 0, room = 1;
};

// What a run says of itself.
struct ModeRun {
  double seconds = 0, tokens_per_s = 0;
  double reward = 0;  // mean of the last quarter of the steps
  double turns = 0;   // of a sample: a mode that trains short ones first has fewer
  double used = 0;    // share of the room's time with an episode that was trained
  double training = 0, masked = 0, staleness = 0, mismatch = 0;
  std::map<std::string, double> idle;  // shares of the places of the rollout workers, by cause
};

double value_of(const MetricsRow& row, std::string_view name) {
  const double* value = row.find(name);
  return value == nullptr ? 0 : *value;
}

// What the rollout workers' places waited for while the steps were made, as shares of all of them
// that were ever in use at once.
std::map<std::string, double> idle_by_cause(const fs::path& directory) {
  const auto file = read_timeline(RunPaths{directory}.timeline());
  require(file.ok(), "{}: no timeline", directory.string());
  Time begin{}, end{};
  for (const TimelineRow& row : file.value().rows) {
    if (row.what == TimelineWhat::kWarmUp) begin = row.at;
    if (row.what == TimelineWhat::kStep) end = row.at;
  }
  const UseShares shares =
      shares_of(use_of_workers(file.value().rows, begin, end, /*num_bins=*/1), Role::kRollout);
  std::map<std::string, double> idle;
  for (size_t use = 0; use < kNumUses; ++use) {
    if (!is_work(static_cast<Use>(use)) && shares[use] > 0)
      idle[std::string(name_of(static_cast<Use>(use)))] = shares[use];
  }
  return idle;
}

ModeRun read_run(const fs::path& directory, int steps, int room) {
  ModeRun run;
  double tokens = 0, episodes_seconds = 0;
  int num_steps = 0;
  for (const MetricsRow& row : metrics_of(directory)) {
    const double* seconds = row.find("time/step");
    if (seconds == nullptr) continue;  // of the warm-up
    ++num_steps;
    run.seconds += *seconds;
    tokens += value_of(row, "perf/tokens_per_s") * *seconds;
    episodes_seconds +=
        (value_of(row, "time/env") + value_of(row, "time/generate")) * kPrompts * kGroup;
    run.training += value_of(row, "time/train");
    run.turns += value_of(row, "rollout/turns/mean") / steps;
    run.masked += value_of(row, "staleness/masked_frac") / steps;
    run.staleness = std::max(run.staleness, value_of(row, "staleness/max"));
    run.mismatch = std::max(run.mismatch, std::abs(value_of(row, "mismatch/kl")));
    const int last = std::max(1, steps / 4);
    if (row.step > steps - last) run.reward += value_of(row, "reward/mean") / last;
  }
  require(num_steps == steps, "{}: {} steps instead of {}", directory.string(), num_steps, steps);
  run.tokens_per_s = tokens / run.seconds;
  run.used = episodes_seconds / (run.seconds * room * kPrompts * kGroup);
  run.training /= run.seconds;
  run.idle = idle_by_cause(directory);
  return run;
}

ModeRun run_mode(const Options& options, const std::string& config, const Choice& workload,
                 const Choice& mode, int seed) {
  const std::string name = fmt::format("{}-{}-{}", workload.name, mode.name, seed);
  std::vector<std::string> keys = workload.keys;
  keys.insert(keys.end(), mode.keys.begin(), mode.keys.end());
  keys.push_back(fmt::format("run.steps={}", options.steps));
  keys.push_back(fmt::format("run.seed={}", seed));
  for (const std::string& override : options.overrides) {
    const std::string key = override.substr(0, override.find('=') + 1);
    // A key is given once: a person's value takes the place of ours.
    std::erase_if(keys, [&](const std::string& ours) { return ours.starts_with(key); });
    keys.push_back(override);
  }
  const fs::path directory = fs::path(options.out) / name;
  launch_run(name, config, directory, keys);
  const ModeRun run = read_run(directory, options.steps, options.room);
  require(!is_on_policy(mode.name) || (run.mismatch == 0 && run.staleness == 0),
          "{} is off-policy: staleness {}, mismatch {}", name, run.staleness, run.mismatch);
  return run;
}

// As it ends, one object in the JSON form.
void report_run(Report& report, const std::string& workload, const std::string& mode, int seed,
                const ModeRun& run) {
  report.add(Row{.name = fmt::format("{}, seed {}", workload, seed),
                 .metric = mode,
                 .unit = "s",
                 .value = spread({run.seconds}),
                 .limit = {},
                 .facts = {{"workload", workload},
                           {"mode", mode},
                           {"seconds", run.seconds},
                           {"reward", run.reward},
                           {"rollout_tokens_per_s", run.tokens_per_s},
                           {"staleness_max", run.staleness},
                           {"mismatch_max", run.mismatch},
                           {"idle", run.idle}}});
}

// `sync`: of the same seeds, one by one.
void report_mode(Report& report, const std::string& name, const std::vector<ModeRun>& runs,
                 const std::vector<ModeRun>& sync) {
  const auto all = [&](auto value) {
    std::vector<double> values;
    for (size_t i = 0; i < runs.size(); ++i) values.push_back(value(runs[i], sync[i]));
    return values;
  };
  using R = const ModeRun&;
  const double ceiling =
      spread(all([](R, R s) { return 1 / std::max(s.used, s.training); })).median;
  report.add(name, "steps", "s", all([](R r, R) { return r.seconds; }));
  report.add(name, "rollout", "tokens/s", all([](R r, R) { return r.tokens_per_s; }));
  report.add(name, "rollout to sync", "x",
             all([](R r, R s) { return r.tokens_per_s / s.tokens_per_s; }), ceiling);
  report.add(name, "steps to sync", "x", all([](R r, R s) { return s.seconds / r.seconds; }),
             ceiling);
  report.add(name, "idle", "share", all([](R r, R) { return 1 - r.used; }));
  report.add(name, "training", "share", all([](R r, R) { return r.training; }));
  report.add(name, "masked", "share", all([](R r, R) { return r.masked; }));
  report.add(name, "turns", "turns", all([](R r, R) { return r.turns; }));
  report.add(name, "reward", "reward", all([](R r, R) { return r.reward; }));
  report.add(name, "staleness", "versions", all([](R r, R) { return r.staleness; }));
  report.add(name, "mismatch", "nats", all([](R r, R) { return r.mismatch; }));
}

std::vector<Choice> chosen(const std::vector<Choice>& all, const std::vector<std::string>& names) {
  std::vector<Choice> some;
  for (const Choice& choice : all) {
    if (names.empty() || std::find(names.begin(), names.end(), choice.name) != names.end())
      some.push_back(choice);
  }
  return some;
}

std::vector<std::string> names_of(const std::vector<Choice>& choices) {
  std::vector<std::string> names;
  for (const Choice& choice : choices) names.push_back(choice.name);
  return names;
}

// What the figures are worked out from has flags of its own, or is fixed.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides) {
    if (override.starts_with("scheduler.mode="))
      throw UserError("scheduler.mode is for the bench to set; see --modes");
    if (override.find('=') == std::string::npos || override.find('.') > override.find('='))
      throw UserError("'{}' is no override: write section.key=value", override);
  }
  for (const char* key : {"run.steps", "run.seed", "rollout.prompts_per_step", "rollout.group_size",
                          "rollout.workers", "rollout.max_sequences"}) {
    for (const std::string& override : overrides) {
      if (override.starts_with(std::string(key) + "="))
        throw UserError("{} is for the bench to set; see --steps, --first and --room", key);
    }
  }
}

void measure(const Options& options, const Program& program) {
  check_overrides(options.overrides);
  std::error_code failed;
  fs::create_directories(options.out, failed);
  if (failed) throw UserError("cannot make {}: {}", options.out, failed.message());
  const fs::path config = fs::path(options.out) / "config.yaml";
  if (auto written = write_file_atomic(config, config_text(options.room)); !written)
    throw UserError("{}", written.failure().message);
  Settings settings = {{"steps", int64_t{options.steps}},
                       {"samples", int64_t{kPrompts * kGroup}},
                       {"workers", int64_t{kWorkers}},
                       {"room", int64_t{options.room}}};
  for (const std::string& override : options.overrides) {
    const size_t equals = std::min(override.find('='), override.size());
    settings.emplace_back(override.substr(0, equals),
                          override.substr(std::min(equals + 1, override.size())));
  }
  Report report = program.report(settings);
  // Always with the first, which the others are measured against.
  std::vector<std::string> mode_names = options.modes;
  if (!mode_names.empty()) mode_names.push_back(modes().front().name);
  const std::vector<Choice> measured = chosen(modes(), mode_names);
  for (const Choice& workload : chosen(workloads(), options.workloads)) {
    std::map<std::string, std::vector<ModeRun>> runs;
    // All modes of a seed before the next: what else the machine does changes slowly.
    for (int seed = options.first; seed < options.first + options.runs; ++seed) {
      for (const Choice& mode : measured) {
        runs[mode.name].push_back(run_mode(options, config.string(), workload, mode, seed));
        report_run(report, workload.name, mode.name, seed, runs[mode.name].back());
      }
    }
    for (const Choice& mode : measured) {
      report_mode(report, fmt::format("{}, {}", workload.name, mode.name), runs[mode.name],
                  runs[measured.front().name]);
    }
  }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("modes", TAILRACE_MEASURES,
                  "modes --workloads length_tailed --modes partial,async_1 --runs 3");
  program.fix_threads(0);  // processes of their own
  program.flags().option("overrides", options.overrides, {.help = "key=value ... of every run"});
  program.flags().option(
      "--workloads", options.workloads,
      {.help = "which, with commas between; all without", .one_of = names_of(workloads())});
  program.flags().option("--modes", options.modes,
                         {.help = "which besides sync, with commas between; all without",
                          .one_of = names_of(modes())});
  program.flags().option("--steps", options.steps,
                         {.help = "of each run", .min = 1, .max = 1'000'000});
  program.flags().option(
      "--runs", options.runs,
      {.help = "of each mode, of one seed each, from --first on", .min = 1, .max = 1000});
  program.flags().option(
      "--room", options.room,
      {.help = "steps of sync that the workers hold at once", .min = 1, .max = 1000});
  program.flags().option("--first", options.first, {.help = "first seed", .max = 1 << 30});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
