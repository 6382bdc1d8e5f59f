// Does a teacher teach? A small student learns on-policy from a frozen teacher of seven times its
// parameters (`policies`, `algo.distill`), beside GRPO on the rewards of the verifier: how much
// success it ends with, and after how many steps it is as good as its teacher.
//
// The task is the one of a single turn of `bench algorithms`: countdown with two numbers up to 9.
// The teacher is trained once: demonstrations, then some steps of GRPO. All students begin with one
// warm-up checkpoint and learn for as many steps, for each seed:
//
//   grpo             the rewards alone
//   policy_gradient  that loss, `rewards: false`
//   beside_rewards   the same beside the rewards
//   jsd              the divergence over the teacher's likeliest tokens, `rewards: false`
//
// A step has 64 prompts with 4 samples, or 128 with 2: as many samples in both layouts. A teacher
// needs no group to say of a token how good it is; GRPO learns from nothing else.
//
// Every other key is the same for all. The held-out success is that of evaluations during the run;
// that of the teacher is measured on the same prompts.
//
// Checks: every run ends well and makes all its steps.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/report/interval.h"
#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "bench/run/learning.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The KL term of `grpo` is off: its reference is the start, and a teacher pulls away from there.
constexpr const char* kConfig = R"(run: {{name: bench_distillation}}
{}model:
  create: {{hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, kv_heads: 2, max_positions: 256}}
env: {{name: countdown, settings: {{min_numbers: 2, max_numbers: 2, max_number: 9, max_target: 81}}}}
rollout: {{group_size: 8, max_context_tokens: 256, workers: 2, threads: 1, prompts_per_step: 32}}
sft:
  epochs: 1
  demonstrations: 10000
  batch_tokens: 2048
  optim: {{lr: 8.0e-3, betas: [0.9, 0.95], weight_decay: 0.01, warmup_updates: 20, schedule: linear, min_lr_ratio: 0.05}}
train: {{minibatches_per_step: 2, microbatch_tokens: 4096, threads: 1}}
optim: {{lr: 2.0e-3, betas: [0.9, 0.95], warmup_updates: 5, schedule: linear, min_lr_ratio: 0.1}}
algo: {{name: grpo, kl: {{coef: 0}}}}
checkpoint: {{interval_steps: 1000000}}
)";

// Steps from one evaluation to the next.
constexpr int kInterval = 5;

struct Options {
  std::string out = "runs/distillation";
  int seeds = 3, first = 0, steps = 60, episodes = 512;
  int teacher_steps = 20, teacher_demonstrations = 20'000;
  bool resume = false;
};

// A way of learning. Without a teacher it has no keys.
struct Method {
  std::string name;
  Keys keys = {};
};

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {.name = "grpo"},
      {.name = "policy_gradient",
       .keys = {"algo.distill.loss=policy_gradient", "algo.distill.rewards=false"}},
      {.name = "beside_rewards",
       .keys = {"algo.distill.loss=policy_gradient", "algo.distill.rewards=true"}},
      {.name = "jsd",
       .keys = {"algo.distill.loss=jsd", "algo.distill.beta=0.5", "algo.distill.top_k=16",
                "algo.distill.rewards=false"}}};
  return all;
}

struct Layout {
  int prompts = 0, samples = 0;
};

// The first is the one that GRPO learns best in.
constexpr Layout kLayouts[] = {{.prompts = 64, .samples = 4}, {.prompts = 128, .samples = 2}};

std::string name_of(const Method& method, const Layout& layout) {
  return fmt::format("{}, {} x {}", method.name, layout.prompts, layout.samples);
}

// The runs of one way of learning, by seed.
struct Arm {
  std::vector<Learning> runs;
  std::vector<double> first_kl, last_kl;
};

std::vector<double> starts(const Arm& arm) {
  std::vector<double> values;
  for (const Learning& run : arm.runs) values.push_back(run.start());
  return values;
}

std::vector<double> finals(const Arm& arm) {
  std::vector<double> values;
  for (const Learning& run : arm.runs) values.push_back(run.final());
  return values;
}

// The first evaluation with at least this success.
std::optional<double> step_of(const Learning& run, double success) {
  for (const auto& [step, value] : run.success)
    if (value >= success) return step;
  return {};
}

// The models of all seeds, and the runs.
class Runs {
 public:
  explicit Runs(const Options& options)
      : options_(options),
        config_(write_config(options.out, "config.yaml", fmt::format(kConfig, ""))),
        teacher_(train_teacher()),
        student_(warm_student()),
        taught_config_(write_config(
            options.out, "taught.yaml",
            fmt::format(kConfig, fmt::format("policies: [{{name: teacher, model: {}}}]\n",
                                             teacher_.string())))) {}

  // Its success on the prompts that the students of this seed are evaluated on.
  double teacher_success(int seed) const {
    const std::string name = fmt::format("teacher-{}", seed);
    launch(name, config_,
           from_weights({"run.steps=1", "optim.lr=0", fmt::format("run.seed={}", seed),
                         fmt::format("eval.prompts={}", options_.episodes)},
                        teacher_));
    return read_learning(metrics_of(path(name))).start();
  }

  void learn(const Method& method, const Layout& layout, int seed, Arm& arm) const {
    const std::string name =
        fmt::format("{}-{}x{}-{}", method.name, layout.prompts, layout.samples, seed);
    Keys keys = {fmt::format("run.steps={}", options_.steps),
                 fmt::format("run.seed={}", seed),
                 fmt::format("rollout.prompts_per_step={}", layout.prompts),
                 fmt::format("rollout.group_size={}", layout.samples),
                 fmt::format("eval.prompts={}", options_.episodes),
                 fmt::format("eval.interval_steps={}", kInterval)};
    if (!method.keys.empty())
      keys = joined(joined(std::move(keys), method.keys), {"algo.distill.policy=teacher"});
    launch(name, method.keys.empty() ? config_ : taught_config_, from_weights(keys, student_));
    const std::vector<MetricsRow> rows = metrics_of(path(name));
    Learning run = read_learning(rows);
    require(run.steps == options_.steps, "{}: {} steps instead of {}", name, run.steps,
            options_.steps);
    require(run.success.front().first == 0 && run.success.back().first == options_.steps,
            "{}: it was not evaluated at its start and at its end", name);
    arm.runs.push_back(std::move(run));
    std::vector<double> kl;
    for (const MetricsRow& row : rows)
      if (const double* value = row.find("distillation/teacher_kl")) kl.push_back(*value);
    if (kl.empty()) return;
    arm.first_kl.push_back(kl.front());
    arm.last_kl.push_back(kl.back());
  }

 private:
  const Options& options_;
  const std::string config_;
  const fs::path teacher_, student_;
  const std::string taught_config_;

  fs::path path(const std::string& name) const {
    return fs::absolute(fs::path(options_.out) / name);
  }

  void launch(const std::string& name, const std::string& config, const Keys& keys) const {
    (options_.resume ? continue_run : launch_run)(name, config, path(name), keys);
  }

  fs::path train_teacher() const {
    launch("teacher", config_,
           {fmt::format("run.steps={}", options_.teacher_steps),
            fmt::format("run.seed={}", options_.first), "eval.prompts=0",
            "model.create.hidden_size=128", "model.create.intermediate_size=384",
            "model.create.layers=5", "sft.epochs=2", "sft.optim.lr=4e-3", "optim.lr=3e-4",
            fmt::format("sft.demonstrations={}", options_.teacher_demonstrations)});
    return path("teacher") / "checkpoints" / fmt::format("step_{:06}", options_.teacher_steps);
  }

  fs::path warm_student() const {
    const fs::path directory = path("warm_up");
    if (options_.resume && fs::exists(directory)) return directory / "checkpoints" / "step_000000";
    return warm_up("warm_up", config_, directory, {fmt::format("run.seed={}", options_.first)});
  }
};

using Values = std::vector<double>;

void report_interval(Report& report, const std::string& name, const std::string& metric,
                     const Values& values, const Values& baseline) {
  if (values.size() < 2) return;
  const Interval gain = paired_interval(values, baseline);
  report.add(
      Row{.name = name,
          .metric = metric,
          .unit = "share",
          .value = {.median = gain.mean, .min = gain.low, .max = gain.high, .runs = gain.runs},
          .limit = {}});
}

// The step at which each run is as good as the bound of its seed. Runs that never are have no step,
// and are counted.
void report_reached(Report& report, const std::string& name, const std::string& bound,
                    const Arm& arm, const Values& bounds) {
  Values steps;
  std::vector<std::string> shown;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto step = step_of(arm.runs[i], bounds[i]);
    if (step) steps.push_back(*step);
    shown.push_back(step ? fmt::format("{:.0f}", *step) : "none");
  }
  if (!steps.empty()) report.add(name, "step at " + bound, "steps", steps);
  if (const size_t never = bounds.size() - steps.size(); never > 0)
    report.add(name, "never at " + bound, "runs", {static_cast<double>(never)});
  report.note(fmt::format("step at {}, by seed: {}", bound, fmt::join(shown, ", ")));
}

// `baseline`: GRPO in the layout that is best for it; null where this is it.
void report_arm(Report& report, const std::string& name, const Arm& arm, const Arm* baseline,
                const Values& teacher) {
  report.add(name, "final", "share", finals(arm));
  report_interval(report, name, "gain (95 %)", finals(arm), starts(arm));
  if (baseline != nullptr)
    report_interval(report, name,
                    fmt::format("less {} (95 %)", name_of(methods().front(), kLayouts[0])),
                    finals(arm), finals(*baseline));
  Values close, most;
  for (const double success : teacher) {
    close.push_back(success - 0.05);
    most.push_back(0.8 * success);
  }
  report_reached(report, name, "teacher - 0.05", arm, close);
  report_reached(report, name, "0.8 teacher", arm, most);
  if (arm.first_kl.empty()) return;
  report.add(name, "teacher_kl, first step", "nats", arm.first_kl);
  report.add(name, "teacher_kl, last step", "nats", arm.last_kl);
}

void measure(const Options& options, const Program& program) {
  Report report = program.report({{"steps", int64_t{options.steps}},
                                  {"teacher_steps", int64_t{options.teacher_steps}},
                                  {"episodes", int64_t{options.episodes}},
                                  {"seeds", int64_t{options.seeds}},
                                  {"first_seed", int64_t{options.first}}});
  const Runs runs(options);
  Values teacher;
  std::map<std::string, Arm> arms;
  for (int seed = options.first; seed < options.first + options.seeds; ++seed) {
    teacher.push_back(runs.teacher_success(seed));
    for (const Layout& layout : kLayouts)
      for (const Method& method : methods())
        runs.learn(method, layout, seed, arms[name_of(method, layout)]);
  }
  const Arm& grpo = arms.at(name_of(methods().front(), kLayouts[0]));
  report.add("teacher", "success", "share", teacher);
  report.add("student", "start", "share", starts(grpo));
  for (const Layout& layout : kLayouts)
    for (const Method& method : methods()) {
      const std::string name = name_of(method, layout);
      const Arm& arm = arms.at(name);
      report_arm(report, name, arm, &arm == &grpo ? nullptr : &grpo, teacher);
    }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("distillation", TAILRACE_MEASURES, "distillation --seeds 1");
  program.fix_threads(0);  // processes of their own
  Command& flags = program.flags();
  flags.option("--steps", options.steps, {.help = "of each student", .min = 1, .max = 999'999});
  flags.option("--teacher-steps", options.teacher_steps,
               {.help = "of GRPO, behind the teacher's demonstrations", .min = 1, .max = 999'999});
  flags.option("--teacher-demonstrations", options.teacher_demonstrations,
               {.help = "which the teacher begins with", .min = 1, .max = 1'000'000});
  flags.option("--episodes", options.episodes,
               {.help = "held-out prompts of an evaluation", .min = 1, .max = 1'000'000});
  flags.option("--seeds", options.seeds,
               {.help = "how many, from --first on", .min = 1, .max = 10000});
  flags.option("--first", options.first, {.help = "first seed", .max = 1'000'000});
  flags.option("--resume", options.resume, {.help = "go on with the runs that are in --out"});
  flags.option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
