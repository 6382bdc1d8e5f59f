#include "cli/simulate/simulated_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "cli/simulate/use_meter.h"
#include "core/base/error.h"
#include "core/run/log.h"
#include "core/run/metrics.h"
#include "scheduler/service/timeline.h"

namespace tailrace {
namespace {

using simulator::Sample;
using simulator::StepRecord;
using simulator::World;

// By the names of docs/metrics.md; what a simulation does not know is left out. `time` is virtual.
MetricsRow metrics_row(const StepRecord& step, const std::vector<Sample>& samples) {
  const auto count = static_cast<double>(std::max<int64_t>(1, step.samples));
  const double seconds = step.ended - step.begun;
  double turns = 0;
  for (const Sample& sample : samples) turns += static_cast<double>(sample.turns);
  return {.step = step.step,
          .version = step.step - 1,
          .unix_seconds = step.ended,
          .values = {
              {"rollout/response_tokens/mean", static_cast<double>(step.tokens) / count},
              {"rollout/response_tokens/max", static_cast<double>(step.longest)},
              {"rollout/turns/mean", turns / count},
              {"staleness/mean", step.staleness_mean},
              {"staleness/max", step.staleness_max},
              {"perf/tokens_per_s", seconds > 0 ? static_cast<double>(step.tokens) / seconds : 0},
              {"perf/train_tokens", static_cast<double>(step.tokens + step.prompt_tokens)},
              {"time/step", seconds},
              {"time/rollout", step.handed - step.begun}}};
}

// Writes the run directory while the world turns.
class Recorder {
 public:
  Recorder(const SimulatedFiles& files, World& world)
      : log_("simulate", "", LogLevel::kError),
        // Virtual time has no date.
        timeline_(files.paths, world.state(), files.timeline_rows, log_, /*begun=*/0) {
    auto opened = MetricsWriter::open(files.paths.metrics(), 0, 0);
    if (!opened) throw UserError("{}", opened.failure().message);
    metrics_ = std::make_unique<MetricsWriter>(std::move(opened).value());
  }

  void observe(const scheduler::Event& event, const scheduler::Actions& actions,
               const scheduler::State& state) {
    timeline_.observe(event, actions, state);
  }
  void flush() {
    timeline_.flush();
    if (!timeline_.failure().empty()) throw UserError("{}", timeline_.failure());
  }

  void on_step(const StepRecord& step, const std::vector<Sample>& samples) {
    if (auto written = metrics_->write(metrics_row(step, samples)); !written)
      throw UserError("{}", written.failure().message);
    flush();
  }

 private:
  Log log_;  // what it would warn of is an error here
  scheduler::Timeline timeline_;
  std::unique_ptr<MetricsWriter> metrics_;
};

}  // namespace

int64_t SimulatedRun::untrained_tokens() const {
  return std::max<int64_t>(0, std::llround(totals.generated) - totals.trained_tokens);
}

SimulatedRun simulate(const Simulation& simulation, const std::optional<SimulatedFiles>& files,
                      const std::function<void(double seconds, int64_t steps)>& progress) {
  World world(simulation.law, simulation.cluster, *simulation.episodes, simulation.seed);
  UseMeter meter;
  int64_t events = 0;
  std::optional<Recorder> recorder;
  if (files) recorder.emplace(*files, world);
  world.observe = [&](const scheduler::Event& event, const scheduler::Actions& actions,
                      const scheduler::State& state) {
    meter.observe(event, actions, state);
    if (recorder) recorder->observe(event, actions, state);
    if (progress && ++events % 4096 == 0) progress(world.now(), std::ssize(world.steps()));
  };
  if (recorder)
    world.on_step = [&](const StepRecord& step, const std::vector<Sample>& samples) {
      recorder->on_step(step, samples);
    };
  SimulatedRun run;
  run.stop = world.run(simulation.seconds);
  if (recorder) recorder->flush();
  run.halted = world.state().halted;
  if (world.state().end) run.end = world.state().end->reason;
  run.seconds = world.now();
  run.steps = world.steps();
  run.totals = world.totals();
  const scheduler::AttemptCounts& attempts = world.state().policies.at(0).attempts;
  run.failed = attempts.env_failed + attempts.verifier_failed;
  run.lost = attempts.lost;
  run.discarded = attempts.discarded;
  run.rollout = meter.shares(Role::kRollout);
  run.reward = meter.shares(Role::kReward);
  run.trainer = meter.shares(Role::kTrainer);
  return run;
}

}  // namespace tailrace
