// What a mode of the scheduler is worth: whole runs that differ in `scheduler.mode` and its knobs
// alone, on three workloads of the environment `paced`.
//
//   length_tailed     lengths as published for a 14B model on mathematics with a limit of 16k
//                     tokens (RollPacker, arXiv 2509.21009, figure 2: median about 520 tokens, the
//                     longest 31 times that), fitted by log-normals over prompts (0.65) and members
//                     (1.13) and by prompts some of whose members run to the limit (1.4 % of all),
//                     a turn standing for 88 tokens; each turn takes the same few milliseconds, as
//                     a token of a large model does however many are decoded beside it (on a CPU a
//                     lone sequence is fast, and a tail would cost nothing)
//   latency_injected  equal turns, each of a log-normal time, by member
//   single_turn       one turn, whose log-normal time stands for the answer's length as published
//                     (the deviations of length_tailed together, 1.3, and at most 31 medians)
//
// All modes have the same room, rollout.max_sequences of all workers together: `--room` steps of
// `sync`. That makes the ceiling a number. Of the time that this room is there while `sync` makes
// its steps, the share in which it holds no episode is idle, and a mode that left none of it idle
// would make 1 / (1 - idle) times the tokens a second, if an episode took the time that it takes in
// `sync`. Nor can there be more steps than the trainer makes: `limit` is the lesser of that and of
// `time/step` of `sync` over its `time/train`. Modes that are on-policy cannot reach it: while a
// step is trained no room is of use to them.
//
// Lengths and latencies are *forced*: they are the same in all modes, so that modes differ in what
// they make of them. The learning rate is 0 and the warm-up is the same, so all versions of all
// runs have the weights of version 0. A token is then a function of run seed, dataset, prompt,
// epoch, launch, member and position, and `paced` draws turns and latencies from the task's seed
// and from what the member says. The bench proves it: a sample that two runs of a seed both have
// has the same turns, tokens and log-probabilities in both, bit for bit, whichever versions sampled
// it.
//
// What is not forced: which samples there are (modes order prompts differently, and a prompt that
// is launched again is another launch, whose samples are drawn anew), and how much longer than its
// latency an answer takes. An answer is never given early. It is asked for about once a millisecond
// and heard between two steps of the engine: that much is added, and is in the recorded seconds.
//
// What was recorded of a workload and seed is written beside the runs, to
// OUT/WORKLOAD-SEED.episodes.jsonl (cli/simulate/recorded_episodes.h). With `--learn` the learning
// rate is not 0: rewards can be compared, and nothing is forced.
//
// The decomposition says by which means a mode gains: `tail`, what is left of waiting for the last
// samples; `overlap` of sampling with training; `partial`, the trained tokens that older weights
// sampled than the end of the same sample; `redundancy`, the tokens that were sampled for nothing.
//
// In the JSON form each run is an object as well, whose keys behind the common ones are `workload`,
// `mode`, `seconds`, `reward`, `loss_tokens_per_s`, `staleness_mean`, `staleness_max`,
// `mismatch_max`, `compared_samples`, `idle`: by cause, the shares of the rollout workers' places
// (of those ever in use at once) that waited; `decomposition`: `tail`, `overlap`, `partial`,
// `redundancy`; and `trainer_seconds`: `train`, its own, and `hand_over_to_publication`, all of it.
//
// Checks: every run trains all its steps; what `sync` and `tail_batching` train on is of the step's
// own weights, without any mismatch; without `--learn` samples are forced.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/forced_samples.h"
#include "bench/run/launched_run.h"
#include "bench/run/mode_run.h"
#include "bench/run/workloads.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> workloads, modes, overrides;
  std::string out = "runs/modes";
  int steps = 24, runs = 1, first = 0, room = 1;
  bool learns = false;
};

std::string name_of_run(const Arm& workload, const Arm& mode, int seed) {
  return fmt::format("{}-{}-{}", workload.name, mode.name, seed);
}

ModeRun run_mode(const Options& options, const std::string& config, const Arm& workload,
                 const Arm& mode, int seed) {
  const std::string name = name_of_run(workload, mode, seed);
  // A person's value takes the place of ours.
  const Keys keys =
      joined(joined(workload.keys, mode.keys),
             joined({fmt::format("run.steps={}", options.steps), fmt::format("run.seed={}", seed)},
                    options.overrides));
  const fs::path directory = fs::path(options.out) / name;
  launch_run(name, config, directory, keys);
  const ModeRun run = read_mode_run(directory, options.steps, kPacedPrompts * kPacedGroup);
  require(!is_on_policy(mode.name) || (run.mismatch == 0 && run.staleness_max == 0),
          "{} is off-policy: staleness {}, mismatch {}", name, run.staleness_max, run.mismatch);
  require(options.learns || run.mismatch == 0,
          "{}: weights of different versions differ, by a mismatch of {}, where nothing is learned",
          name, run.mismatch);
  return run;
}

// As it ends, one object in the JSON form.
void report_run(Report& report, const std::string& workload, const std::string& mode, int seed,
                const ModeRun& run, int64_t compared) {
  report.add(Row{
      .name = fmt::format("{}, seed {}", workload, seed),
      .metric = mode,
      .unit = "s",
      .value = spread({run.seconds}),
      .limit = {},
      .facts = {{"workload", workload},
                {"mode", mode},
                {"seconds", run.seconds},
                {"reward", run.reward},
                {"loss_tokens_per_s", run.tokens_per_s()},
                {"staleness_mean", run.staleness_mean},
                {"staleness_max", run.staleness_max},
                {"mismatch_max", run.mismatch},
                {"compared_samples", static_cast<double>(compared)},
                {"idle", run.idle},
                {"decomposition", std::map<std::string, double>{{"tail", run.tail},
                                                                {"overlap", run.overlap},
                                                                {"partial", run.partial},
                                                                {"redundancy", run.redundancy}}},
                {"trainer_seconds", std::map<std::string, double>{
                                        {"train", run.train_seconds},
                                        {"hand_over_to_publication", run.handed_seconds}}}}});
}

// `sync`: of the same seeds, one by one.
void report_mode(Report& report, const std::string& name, int room,
                 const std::vector<ModeRun>& runs, const std::vector<ModeRun>& sync) {
  const auto all = [&](auto value) {
    std::vector<double> values;
    for (size_t i = 0; i < runs.size(); ++i) values.push_back(value(runs[i], sync[i]));
    return values;
  };
  using R = const ModeRun&;
  const auto used = [&](R r) { return r.used(int64_t{room} * kPacedPrompts * kPacedGroup); };
  const auto training = [](R r) { return r.train_seconds / r.seconds; };
  const double ceiling =
      spread(all([&](R, R s) { return 1 / std::max(used(s), training(s)); })).median;
  report.add(name, "steps", "s", all([](R r, R) { return r.seconds; }));
  report.add(name, "in the loss", "tokens/s", all([](R r, R) { return r.tokens_per_s(); }));
  report.add(name, "in the loss to sync", "x",
             all([](R r, R s) { return r.tokens_per_s() / s.tokens_per_s(); }), ceiling);
  report.add(name, "steps to sync", "x", all([](R r, R s) { return s.seconds / r.seconds; }),
             ceiling);
  report.add(name, "idle", "share", all([&](R r, R) { return 1 - used(r); }));
  report.add(name, "tail", "share", all([](R r, R) { return r.tail; }));
  report.add(name, "overlap", "share", all([](R r, R) { return r.overlap; }));
  report.add(name, "partial", "share", all([](R r, R) { return r.partial; }));
  report.add(name, "redundancy", "share", all([](R r, R) { return r.redundancy; }));
  report.add(name, "training", "share", all([&](R r, R) { return training(r); }));
  report.add(name, "trainer", "s", all([](R r, R) { return r.handed_seconds; }));
  report.add(name, "masked", "share", all([](R r, R) { return r.masked; }));
  report.add(name, "turns", "turns", all([](R r, R) { return r.turns; }));
  report.add(name, "reward", "reward", all([](R r, R) { return r.reward; }));
  report.add(name, "staleness", "versions", all([](R r, R) { return r.staleness_mean; }));
  report.add(name, "staleness max", "versions", all([](R r, R) { return r.staleness_max; }));
  report.add(name, "mismatch", "nats", all([](R r, R) { return r.mismatch; }));
}

// What the figures are worked out from has flags of its own, or is fixed.
void check_overrides(const std::vector<std::string>& overrides, bool learns) {
  for (const std::string& override : overrides) {
    if (override.starts_with("scheduler.mode="))
      throw UserError("scheduler.mode is for the bench to set; see --modes");
    if (override.starts_with("optim.") && !learns)
      throw UserError("{} has no effect where the learning rate is 0; give --learn as well",
                      override.substr(0, override.find('=')));
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

using Runs = std::map<std::string, std::vector<ModeRun>>;

void measure_seed(const Options& options, const fs::path& config, const Arm& workload,
                  const std::vector<Arm>& modes, int seed, Runs& runs, Report& report) {
  ForcedSamples samples;
  for (const Arm& mode : modes) {
    const ModeRun run = run_mode(options, config.string(), workload, mode, seed);
    int64_t compared = 0;
    if (!options.learns) {
      const std::string name = name_of_run(workload, mode, seed);
      compared = samples.add(name, fs::path(options.out) / name);
      require(compared > 0 || mode.name == modes.front().name,
              "{}: it has no sample that a run before it had", name);
    }
    runs[mode.name].push_back(run);
    report_run(report, workload.name, mode.name, seed, run, compared);
  }
  if (!options.learns)
    samples.write(fs::path(options.out) / fmt::format("{}-{}.episodes.jsonl", workload.name, seed));
}

void measure(const Options& options, const Program& program) {
  check_overrides(options.overrides, options.learns);
  const fs::path config = write_config(
      options.out, "config.yaml",
      paced_config({.room = options.room, .learning_rate = options.learns ? 1e-3 : 0}));
  Settings settings = {{"steps", int64_t{options.steps}},
                       {"samples", int64_t{kPacedPrompts * kPacedGroup}},
                       {"workers", int64_t{kPacedWorkers}},
                       {"room", int64_t{options.room}},
                       {"lengths", options.learns ? "learned" : "forced"}};
  add_settings(settings, options.overrides);
  Report report = program.report(settings);
  // Always with the first, which the others are measured against.
  std::vector<std::string> mode_names = options.modes;
  if (!mode_names.empty()) mode_names.push_back(paced_modes().front().name);
  const std::vector<Arm> measured = chosen(paced_modes(), mode_names);
  for (const Arm& workload : chosen(paced_workloads(), options.workloads)) {
    Runs runs;
    // All modes of a seed before the next: what else the machine does changes slowly.
    for (int seed = options.first; seed < options.first + options.runs; ++seed)
      measure_seed(options, config, workload, measured, seed, runs, report);
    for (const Arm& mode : measured) {
      report_mode(report, fmt::format("{}, {}", workload.name, mode.name), options.room,
                  runs[mode.name], runs[measured.front().name]);
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
      {.help = "which, with commas between; all without", .one_of = names_of(paced_workloads())});
  program.flags().option("--modes", options.modes,
                         {.help = "which besides sync, with commas between; all without",
                          .one_of = names_of(paced_modes())});
  program.flags().option("--steps", options.steps,
                         {.help = "of each run", .min = 1, .max = 1'000'000});
  program.flags().option(
      "--runs", options.runs,
      {.help = "of each mode, of one seed each, from --first on", .min = 1, .max = 1000});
  program.flags().option(
      "--room", options.room,
      {.help = "steps of sync that the workers hold at once", .min = 1, .max = 1000});
  program.flags().option(
      "--learn", options.learns,
      {.help = "train with a learning rate, for the rewards: lengths then differ between modes"});
  program.flags().option("--first", options.first, {.help = "first seed", .max = 1 << 30});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
