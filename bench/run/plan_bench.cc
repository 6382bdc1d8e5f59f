// What `tailrace plan` says of the time of a step, against the step that a run then makes here:
// quickstart, tinystories, and a step of a policy of random weights with the sizes of Qwen2.5-0.5B.
//
// How long episodes get is not what is under test: the plan plays the episodes of the run again
// (`plan --like RUN`), of the same steps whose time is measured. It is made twice, right behind the
// run. Its parts are compared as well: a sum may be right by two mistakes.
//
// Other processes lengthen a step and not the plan of it, so that the steps are also given without
// the time in which their threads waited for a core (cli/plan/quiet_steps.h). The others' share of
// the machine is a row of its own; an attempt in which it is above --max-others is made again, for
// up to --patience seconds, and the quietest one is reported.
//
// Checks: the run trains all its steps.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "cli/inputs/load.h"
#include "cli/plan/planned_run.h"
#include "cli/plan/quiet_steps.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/run/run_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name, config;
  std::vector<std::string> keys;
  int64_t skipped = 0, steps = 0;  // of a run: those at its begin that are not measured, and all
};

struct Options {
  std::vector<std::string> cases = {"quickstart", "tinystories", "qwen2.5-0.5b"};
  std::string configs = "configs";
  std::string out = "runs/plan";
  int64_t steps = 20;
  double max_others = 0.1, patience = 0;
};

// 24 layers of Qwen2.5-0.5B; the vocabulary is the environment's, of a few words. Without a
// reference and with little room for KV, so that it fits 8 GiB.
constexpr std::string_view kLarge = R"(run: {name: large}
model:
  create: {hidden_size: 896, intermediate_size: 4864, layers: 24, heads: 14, kv_heads: 2, max_positions: 256}
  compute: bf16
env: {name: frozen_grid}
rollout: {prompts_per_step: 2, group_size: 4, max_turns: 3, max_action_tokens: 3, max_context_tokens: 64, max_sequences: 8, max_batch_tokens: 256, workers: 1, threads: 2}
train: {microbatch_tokens: 256, threads: 2}
algo: {name: grpo, filter_zero_signal: none, kl: {coef: 0}}
optim: {lr: 1.0e-6}
)";

Case case_of(const Options& options, const std::string& name) {
  const std::vector<std::string> keys = {"eval.prompts=8", "checkpoint.interval_steps=1000"};
  if (name == "quickstart")
    return {name, options.configs + "/quickstart.yaml", keys, 5, 5 + options.steps};
  if (name == "tinystories")
    return {name, options.configs + "/tinystories.yaml", keys, 5, 5 + options.steps};
  // Of so large a policy the second step is like any other, and takes long.
  const fs::path file = fs::path(options.out) / "large.yaml";
  if (auto written = write_file_atomic(file, kLarge); !written)
    throw UserError("{}", written.failure().message);
  const int64_t steps = std::min<int64_t>(options.steps, 2);
  return {name, file.string(), {"checkpoint.interval_steps=1000"}, 1, 1 + steps};
}

// What other processes take of the machine.
class Neighbours {
 public:
  Neighbours() : begin_(now()) {}
  double share() const {
    const Times end = now();
    const double all = end.all - begin_.all;
    if (all <= 0) return 0;
    return std::max(0.0, (end.busy - begin_.busy - (end.own - begin_.own)) / all);
  }

 private:
  struct Times {
    double busy = 0, all = 0, own = 0;  // seconds of all cores; of this process and its children
  };
  static double seconds(const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  static Times now() {
    Times times;
    // "cpu user nice system idle iowait irq softirq steal ...", in ticks.
    std::ifstream stat("/proc/stat");
    std::string cpu;
    stat >> cpu;
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    double value = 0;
    for (int column = 0; column < 8 && stat >> value; ++column) {
      times.all += value / ticks;
      if (column != 3 && column != 4) times.busy += value / ticks;
    }
    for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage usage{};
      if (::getrusage(who, &usage) == 0)
        times.own += seconds(usage.ru_utime) + seconds(usage.ru_stime);
    }
    return times;
  }

  Times begin_;
};

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(std::max<size_t>(1, values.size()));
}

struct Measured {
  std::vector<double> step, rollout, train, rest;
  QuietStep quiet = {};
};

Measured run_case(const Case& measured, const fs::path& directory) {
  std::vector<std::string> keys = measured.keys;
  keys.push_back(fmt::format("run.steps={}", measured.steps));
  QuietSteps steps_watch(RunPaths{fs::absolute(directory)},
                         load_run_options(measured.config, keys, built_in_registries()).run.threads,
                         measured.skipped + 1);
  {
    std::jthread watcher([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(5)))
        steps_watch.look();
    });
    launch_run(measured.name, measured.config, fs::absolute(directory), keys);
  }
  Measured times;
  const auto quiet = steps_watch.mean();
  require(quiet.has_value(), "{}: its steps were not seen", measured.name);
  times.quiet = *quiet;
  int64_t steps = 0;
  for (const MetricsRow& row : metrics_of(directory)) {
    const double *step = row.find("time/step"), *rollout = row.find("time/rollout"),
                 *train = row.find("time/train");
    if (step == nullptr || rollout == nullptr || train == nullptr) continue;
    if (++steps <= measured.skipped) continue;
    times.step.push_back(*step);
    times.rollout.push_back(*rollout);
    times.train.push_back(*train);
    times.rest.push_back(*step - *rollout - *train);
  }
  require(steps == measured.steps, "{}: {} of {} steps were trained", measured.name, steps,
          measured.steps);
  return times;
}

// Of the steps that are measured, in the same order.
struct Planned {
  std::vector<double> step, rollout, train, rest;
};

Planned plan_case(const Case& planned, const LoadedRun& loaded, const fs::path& directory) {
  const PlannedRun plan = plan_here({.run = loaded.run,
                                     .registries = loaded.registries,
                                     .steps = planned.steps,
                                     .like = directory,
                                     .program = build_folder() / "tailrace",
                                     .with_mode = {},
                                     .say = [](const std::string&) {}});
  const double rest = plan.machine->train.step + plan.machine->train.publish;
  Planned times;
  for (const simulator::StepRecord& step : plan.modes[plan.own].simulated.run.steps) {
    if (step.step <= planned.skipped) continue;
    times.step.push_back(step.ended - step.begun);
    times.rollout.push_back(step.handed - step.begun);
    times.train.push_back(step.ended - step.handed - rest);
    times.rest.push_back(rest);
  }
  require(!times.step.empty(), "{}: the plan has no step", planned.name);
  return times;
}

struct Attempt {
  Measured run;
  std::vector<Planned> plans;
  double others = 0;
};

Attempt attempt(const Case& planned, const fs::path& directory) {
  Attempt made;
  const Neighbours neighbours;
  made.run = run_case(planned, directory);
  const LoadedRun loaded = load_run_options(planned.config, planned.keys, built_in_registries());
  for (int i = 0; i < 2; ++i) made.plans.push_back(plan_case(planned, loaded, directory));
  made.others = neighbours.share();
  // A large policy leaves gigabytes.
  std::error_code ignored;
  fs::remove_all(directory, ignored);
  return made;
}

void measure_case(const Options& options, const std::string& name, Report& report) {
  const Case planned = case_of(options, name);
  const fs::path directory = fs::path(options.out) / name;
  const Stopwatch watch;
  Attempt best = attempt(planned, directory);
  while (best.others > options.max_others && watch.seconds() < options.patience) {
    Attempt next = attempt(planned, directory);
    if (next.others < best.others) best = std::move(next);
  }
  const QuietStep& quiet = best.run.quiet;
  const auto add = [&](const std::string& metric, const std::vector<double>& measured,
                       double without_others, std::vector<double> Planned::*part) {
    std::vector<double> means;
    for (const Planned& plan : best.plans) means.push_back(mean_of(plan.*part));
    report.add(name, metric, "s", measured);
    report.add(name, metric + ", without others", "s", {without_others});
    report.add(name, metric + ", planned", "s", means);
  };
  add("step", best.run.step, quiet.whole(), &Planned::step);
  add("rollout", best.run.rollout, quiet.rollout, &Planned::rollout);
  add("train", best.run.train, quiet.train, &Planned::train);
  add("the rest", best.run.rest, quiet.rest, &Planned::rest);
  std::vector<double> ratios, quiet_ratios;
  for (const Planned& plan : best.plans) {
    ratios.push_back(mean_of(plan.step) / mean_of(best.run.step));
    quiet_ratios.push_back(mean_of(plan.step) / quiet.whole());
  }
  report.add(name, "planned / measured", "ratio", ratios);
  report.add(name, "planned / without others", "ratio", quiet_ratios);
  report.add(name, "others", "share", {best.others});
}

void measure(const Options& options, const Program& program) {
  std::error_code failed;
  fs::create_directories(options.out, failed);
  if (failed) throw UserError("cannot make {}: {}", options.out, failed.message());
  Report report = program.report({{"steps", options.steps}});
  for (const std::string& name : options.cases) measure_case(options, name, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("plan", TAILRACE_MEASURES, "plan --cases quickstart --steps 10");
  program.fix_threads(0);  // the configs' business
  program.flags().option(
      "--cases", options.cases,
      {.help = "which", .one_of = {"quickstart", "tinystories", "qwen2.5-0.5b"}});
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps of each run", .min = 1, .max = 1000});
  program.flags().option("--max-others", options.max_others,
                         {.help = "share of the machine that others may take", .max = 1});
  program.flags().option("--patience", options.patience,
                         {.help = "seconds that a case may wait for a quiet attempt", .max = 1e6});
  program.flags().option("--configs", options.configs,
                         {.help = "the folder that holds quickstart.yaml and tinystories.yaml"});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
