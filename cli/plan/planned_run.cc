#include "cli/plan/planned_run.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <stdlib.h>

#include "cli/plan/calibrate.h"
#include "cli/simulate/simulation_size.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/machine.h"
#include "core/run/log.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using simulator::StepRecord;

constexpr int64_t kMostSamples = 30'000, kFewestSteps = 6;
// A mode or split must be faster by this factor than one that is less stale, or the config's own.
constexpr double kWorthIt = 0.98;

class CalibrationFolder {
 public:
  CalibrationFolder() {
    std::string pattern = (fs::temp_directory_path() / "tailrace-plan-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw UserError("{}", describe_errno("create", pattern, errno));
    path_ = pattern;
  }
  ~CalibrationFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  CalibrationFolder(const CalibrationFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// As many as make a whole run, or so many that it is clear what one takes.
int64_t steps_to_simulate(const PlanRequest& request) {
  const RunOptions& o = request.run.options;
  const int64_t samples = o.step.prompts_per_step * o.step.group_size;
  return std::min(request.steps, std::max(kFewestSteps, kMostSamples / samples));
}

// Seconds of one step that its processes compute, over the cores that they share. However sampling
// and training overlap, no step is shorter.
double shared_seconds(const ResolvedRun& planned, const MachineCosts& costs,
                      const SimulatedRun& run) {
  const auto cores = static_cast<double>(num_usable_cores());
  const auto steps = static_cast<double>(std::max<size_t>(1, run.steps.size()));
  const auto workers = static_cast<double>(planned.rollout_workers);
  const ThreadPlan& plan = planned.threads;
  const auto threads = static_cast<double>(plan.worker),
             training = static_cast<double>(plan.trainer * plan.ranks);
  const double sampled = run.totals.engine_busy * std::min(threads, cores / workers),
               beside = steps * (costs.train.step + costs.train.publish),
               trained = (run.totals.trainer_busy - beside) * std::min(training, cores);
  return (sampled + trained) / cores / steps;
}

// The simulation's size is held against this machine's memory before anything else is done. Returns
// a text about it.
std::string checked_size(ResolvedRun simulated, int64_t steps,
                         const sandbox::EnvironmentRegistry& environments,
                         const EpisodeSource& episodes) {
  simulated.options.simulate.steps = steps;
  if (episodes) simulated.options.simulate.episodes.from.clear();
  Simulation simulation = make_simulation(simulated, environments);
  if (episodes) simulation.episodes = episodes;
  const SimulationSize size = size_of(simulation);
  require_size(size, memory_facts());
  const std::string note = size_note(size);
  return "simulates the modes" + (note.empty() ? "" : "; " + note);
}

using Simulate = std::function<SimulatedMode(const ResolvedRun&)>;

PlannedMode planned_mode(const PlanRequest& request, const std::optional<MachineCosts>& costs,
                         const Simulate& simulate, const ResolvedRun& own) {
  PlannedMode planned{.simulated = simulate(own)};
  const SimulatedRun& run = planned.simulated.run;
  if (run.steps.empty())
    throw UserError("a simulation of the run in mode {} trains no step: {}",
                    name_of(own.options.scheduler.mode.name),
                    run.halted.empty() ? "its time is over before" : run.halted);
  const auto simulated = static_cast<double>(run.steps.size()),
             steps = static_cast<double>(request.steps);
  // The simulation gives each process cores of its own. Where they share a machine, no step is
  // shorter than its work over all cores.
  const double least = costs ? shared_seconds(own, *costs, run) : 0;
  double samples = 0;
  for (const StepRecord& step : run.steps) {
    planned.staleness += step.staleness_mean * static_cast<double>(step.samples);
    samples += static_cast<double>(step.samples);
  }
  planned.staleness /= std::max(1.0, samples);
  planned.step = std::max(least, run.summary().step_median);
  planned.eta = steps * std::max(least, run.summary().seconds / simulated);
  const Simulation& simulation = planned.simulated.simulation;
  planned.device_hours =
      static_cast<double>(simulation.rollout_devices() + simulation.trainer_devices()) *
      run.seconds / 3600 / simulated * steps;
  planned.cost = run.totals.price / simulated * steps;
  return planned;
}

void plan_modes(const PlanRequest& request, const Simulate& simulate, PlannedRun& planned) {
  const scheduler::ModeName own = request.run.options.scheduler.mode.name;
  const auto add = [&](const ResolvedRun& run) {
    planned.modes.push_back(planned_mode(request, planned.machine, simulate, run));
  };
  for (const std::string_view text : kEnumNames<scheduler::ModeName>) {
    const auto name = *value_of<scheduler::ModeName>(std::string(text));
    if (name == own) {
      planned.own = planned.modes.size();
      add(request.run);
    } else if (request.with_mode) {
      try {
        add(request.with_mode(name));
      } catch (const UserError& error) {
        planned.refused.emplace_back(text, error.what());
      }
    }
  }
  // A mode that stands later samples further ahead as a rule, and has to be worth that (kWorthIt).
  for (size_t i = 1; i < planned.modes.size(); ++i)
    if (planned.modes[i].eta < kWorthIt * planned.modes[planned.best].eta) planned.best = i;
}

// Other shares of the devices for the trainer, in the best mode.
void plan_splits(const PlanRequest& request, const Simulate& simulate, PlannedRun& planned) {
  const SimulatedMode& best = planned.modes[planned.best].simulated;
  const Simulation& simulation = best.simulation;
  if (simulation.cluster.pools.size() != 1) return;  // nobody knows whose devices go where
  const int64_t devices = simulation.rollout_devices() + simulation.trainer_devices(),
                of_worker = simulation.rollout_devices() / simulation.rollout_workers(),
                of_trainer = simulation.trainer_devices() / best.options.simulate.trainer.workers;
  ResolvedRun split = changed(request.run, best.options);
  // Small clusters give the same split for several parts.
  std::set<int64_t> tried;
  constexpr int64_t kParts = 8;
  tried.insert(split.options.simulate.trainer.workers);
  planned.splits.push_back(planned_mode(request, planned.machine, simulate, split));
  // From a single trainer on.
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t trainers = std::max<int64_t>(1, devices * part / kParts / of_trainer);
    const int64_t workers = (devices - trainers * of_trainer) / of_worker;
    if (workers < 1 || !tried.insert(trainers).second) continue;
    split.options.simulate.trainer.workers = trainers;
    split.options.simulate.workers = workers;
    planned.splits.push_back(planned_mode(request, planned.machine, simulate, split));
  }
  for (size_t i = 1; i < planned.splits.size(); ++i)
    if (planned.splits[i].eta < kWorthIt * planned.splits[planned.best_split].eta)
      planned.best_split = i;
}

}  // namespace

const PlannedMode* PlannedRun::best_with_one_trainer() const {
  const PlannedMode* found = nullptr;
  for (const auto* list : {&modes, &splits})
    for (const PlannedMode& mode : *list)
      if (mode.simulated.simulation.trainer_devices() <= 1 &&
          mode.simulated.simulation.trainer_workers == 1 &&
          (found == nullptr || mode.eta < kWorthIt * found->eta))
        found = &mode;
  return found;
}

PlannedRun plan_here(const PlanRequest& request) {
  if (request.run.rollout_workers == 0)
    throw UserError(
        "this config's launch starts no rollout worker (all pools are in clusters), so that "
        "nothing of them can be measured here. Try --hardware (docs/hardware.md).");
  const sandbox::EnvironmentRegistry& environments = request.registries.environments;
  const ResolvedRun local = local_run(request.run, request.like);
  const EpisodeSource known =
      request.like.empty() ? nullptr : make_simulation(local, environments).episodes;
  const int64_t steps = steps_to_simulate(request);
  const std::string simulates = checked_size(local, steps, environments, known);
  const CalibrationFolder folder;
  const Calibration calibration =
      calibrate(local, request.registries, known, request.program, folder.path(), request.say);
  PlannedRun planned{.steps = request.steps,
                     .episodes = known ? "those of " + request.like.string() : calibration.source,
                     .machine = calibration.costs};
  request.say(simulates);
  plan_modes(
      request,
      [&](const ResolvedRun& run) {
        return simulate_here(local_run(run, {}), environments, calibration.costs,
                             calibration.episodes, steps);
      },
      planned);
  return planned;
}

PlannedRun plan_on_hardware(const PlanRequest& request) {
  const sandbox::EnvironmentRegistry& environments = request.registries.environments;
  ResolvedRun own = request.run;
  if (!request.like.empty()) own.options.simulate.episodes.from = request.like.string();
  const std::string& from = own.options.simulate.episodes.from;
  PlannedRun planned{.steps = request.steps,
                     .episodes = from.empty() ? "drawn, by hardware.episodes" : "those of " + from};
  const EpisodeSource episodes = make_simulation(own, environments).episodes;
  const int64_t steps = steps_to_simulate(request);
  const Simulate simulate_one = [&](ResolvedRun run) {
    run.options.simulate.steps = steps;
    run.options.simulate.episodes.from.clear();
    SimulatedMode mode{.options = run.options, .simulation = make_simulation(run, environments)};
    mode.simulation.episodes = episodes;
    require_size(size_of(mode.simulation), memory_facts());
    mode.run = simulate(mode.simulation, std::nullopt);
    return mode;
  };
  request.say(checked_size(own, steps, environments, episodes));
  // By turns there is but one way.
  PlanRequest asked = request;
  if (own.options.run.colocate) asked.with_mode = {};
  plan_modes(asked, simulate_one, planned);
  const Simulation& simulation = planned.modes[planned.own].simulated.simulation;
  if (request.tries_turns && !own.options.run.colocate && simulation.rollout_devices() == 1 &&
      simulation.trainer_devices() == 1) {
    const auto sync = std::ranges::find(
        planned.modes, scheduler::ModeName::kSync,
        [](const PlannedMode& mode) { return mode.simulated.options.scheduler.mode.name; });
    RunOptions turns = sync == planned.modes.end() ? own.options : sync->simulated.options;
    turns.run.colocate = true;
    planned.in_turn =
        planned_mode(request, std::nullopt, simulate_one, changed(own, std::move(turns)));
  }
  if (asked.with_mode) {
    request.say("simulates other splits of the devices");
    plan_splits(request, simulate_one, planned);
  }
  return planned;
}

}  // namespace tailrace
