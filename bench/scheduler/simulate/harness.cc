#include "bench/scheduler/simulate/harness.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/report/program.h"

namespace tailrace::simulate {

using simulator::StepRecord;
using simulator::World;

namespace {

constexpr double kDeadline = 1e9;  // seconds of the simulated clock
constexpr uint64_t kSeed = 20261126;

}  // namespace

scheduler::Config law_of(const scheduler::Mode& mode, int64_t prompts, int64_t group) {
  scheduler::Config law;
  law.mode = mode;
  law.datasets = {{.prompts_per_step = prompts}};
  law.group_size = group;
  law.steps = 1'000'000;  // a run is stopped long before
  law.deadlines.lease = law.deadlines.install = law.deadlines.verify = std::chrono::hours(1000);
  law.validate();
  return law;
}

scheduler::Mode preset(scheduler::ModeName name) {
  return scheduler::ModeOptions::preset(name).mode();
}

scheduler::Mode ahead_by(double steps) {
  scheduler::ModeOptions options;
  options.ahead = steps;
  return options.mode();
}

Measured measure(const scheduler::Config& law, const simulator::Cluster& cluster,
                 const simulator::EpisodeModel& episodes, int64_t warm_up, int64_t steps) {
  const simulator::DrawnEpisodes source({episodes}, kSeed);
  World world(law, cluster, source, kSeed);
  const auto go = [&](int64_t count) {
    const World::Stop stop = world.run(kDeadline, count);
    require(stop == World::Stop::kSteps, "a simulated run stopped at step {}{}{}",
            world.steps().size(), world.state().halted.empty() ? "" : ": ", world.state().halted);
  };
  if (warm_up > 0) go(warm_up);
  const World::Totals before = world.totals();
  const double begun = world.now();
  go(steps);
  const World::Totals after = world.totals();
  require(std::ssize(world.steps()) == warm_up + steps, "{} steps were published, not {}",
          world.steps().size(), warm_up + steps);

  Measured measured;
  measured.steps.assign(world.steps().begin() + warm_up, world.steps().end());
  const int64_t samples = law.prompts_per_step() * law.group_size;
  int64_t tokens = 0, old_tokens = 0;
  const auto n = static_cast<double>(steps);
  for (size_t i = 0; i < measured.steps.size(); ++i) {
    const StepRecord& step = measured.steps[i];
    require(step.samples == samples && step.step == warm_up + static_cast<int64_t>(i) + 1,
            "step {} has {} samples, not {}", step.step, step.samples, samples);
    require(step.staleness_max <= static_cast<double>(law.mode.max_staleness) ||
                law.mode.on_stale == scheduler::OnStale::kMask,
            "step {} is {} versions stale", step.step, step.staleness_max);
    tokens += step.tokens;
    old_tokens += step.old_tokens;
    measured.rollout += (step.handed - step.begun) / n;
    measured.staleness += step.staleness_mean * static_cast<double>(step.samples);
    measured.longest += static_cast<double>(step.longest) / n;
  }
  measured.staleness /= n * static_cast<double>(samples);
  const double seconds = world.now() - begun;
  measured.step = seconds / n;
  measured.tokens_per_s = static_cast<double>(tokens) / seconds;
  measured.old_share = static_cast<double>(old_tokens) / static_cast<double>(tokens);
  measured.tokens_per_sample = static_cast<double>(tokens) / (n * static_cast<double>(samples));
  measured.busy =
      (after.engine_busy - before.engine_busy) / (after.engine_time - before.engine_time);
  measured.trainer_busy = (after.trainer_busy - before.trainer_busy) / seconds;
  return measured;
}

// Secants in the logarithms: times are nearly powers of what they depend on.
double solve(double target, double guess, const std::function<double(double)>& f,
             double tolerance) {
  const auto off = [&](double x) { return std::log(f(std::exp(x)) / target); };
  double before = std::log(guess), at_before = off(before);
  double here = before - at_before;
  for (int i = 0; i < 30 && std::abs(at_before) > tolerance; ++i) {
    const double at_here = off(here);
    const double slope = here != before ? (at_here - at_before) / (here - before) : 1;
    before = here;
    at_before = at_here;
    const double step = std::abs(slope) > 0.02 ? at_here / slope : at_here;
    here -= std::clamp(step, -1.5, 1.5);
  }
  require(std::abs(at_before) <= tolerance, "nothing gives {}: {} is the nearest", target,
          target * std::exp(at_before));
  return std::exp(before);
}

double solve_slower(double target, double guess, const std::function<double(double)>& f) {
  const double slower = solve(target, guess, f);
  require(slower >= 1,
          "{} s ask for decoding at {:.2f} of the time of its roofline: something else of the "
          "experiment is wrong",
          target, slower);
  return slower;
}

double normal_below(double x) { return std::erfc(-x / std::sqrt(2)) / 2; }

simulator::Hardware engine_of(const Gpu& gpu, const Model& model, int gpus, double slower) {
  const double bytes_per_s = 0.7 * gpu.bytes_per_s * gpus;
  const double flops_per_s = 0.4 * gpu.flops_per_s * gpus;
  return {.decode = {.step = slower * (0.004 + 2 * model.parameters / bytes_per_s),
                     .sequence = slower * 2 * model.parameters / flops_per_s,
                     .context = slower * model.kv_bytes / bytes_per_s},
          .prefill_tokens_per_s = flops_per_s / (2 * model.parameters),
          .kv_tokens = static_cast<int64_t>(
              (0.85 * gpu.memory_bytes * gpus - 2 * model.parameters) / model.kv_bytes)};
}

double train_gpu_seconds(const Gpu& gpu, const Model& model) {
  return 8 * model.parameters / (0.35 * gpu.flops_per_s);
}

simulator::LengthModel lengths_of(double mean, int64_t limit, double sigma) {
  const auto cut = static_cast<double>(limit);
  // The mean of min(cut, exp(mu + sigma N)).
  const double median = solve(mean, mean / 2, [&](double m) {
    const double z = std::log(cut / m) / sigma;
    return m * std::exp(sigma * sigma / 2) * normal_below(z - sigma) + cut * normal_below(-z);
  });
  return {.median = median,
          .sigma_prompt = sigma * std::sqrt(1.0 / 3),
          .sigma_response = sigma * std::sqrt(2.0 / 3),
          .limit = limit};
}

}  // namespace tailrace::simulate
