#include "tests/scheduler/decide/touches.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "scheduler/decide/decide.h"

namespace tailrace::scheduler {
namespace {

constexpr int64_t kSome = 16;  // events, where there could be more
constexpr int64_t kFewWorkers = 16;

std::string worker_name(int64_t i) { return fmt::format("w{:05}", i); }

// A run whose workers hold version 0 and all the work that they have slots for.
struct Begun {
  State state;

  Begun(Config config, int64_t workers, int64_t slots) : state(std::move(config)) {
    tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
    tell(RolledBack{"t", 0, -1, "", "", ""});
    for (int64_t i = 0; i < workers; ++i) tell(WorkerUp{.worker = worker_name(i), .slots = slots});
    install(tell(Published{"t", 0, 0, "a0", "v0.json", "m0"}));
  }

  // What it asks for is staged by all and then switched to.
  void install(const Actions& published) {
    std::vector<Switch> switches;
    for (const Action& action : published) {
      const auto* stage = std::get_if<Stage>(&action);
      if (stage == nullptr) continue;
      for (const Action& next : tell(Staged{stage->worker, 0, stage->version, stage->digest}))
        if (const auto* change = std::get_if<Switch>(&next)) switches.push_back(*change);
    }
    for (const Switch& change : switches)
      tell(Installed{change.worker, 0, change.version, change.digest});
  }

  Actions tell(const Event& event) { return decide(state, event, std::chrono::seconds(1)); }

  AttemptResult answer(const WorkId& work, const Lease& lease, Outcome outcome) const {
    AttemptResult result{.worker = lease.worker,
                         .lease = {work.member, lease.attempt},
                         .lane = work.lane,
                         .outcome = outcome,
                         .reward = {},
                         .reason = ""};
    if (outcome != Outcome::kFinished) return result;
    result.tokens = 5;
    result.min_version = result.max_version = 0;
    result.reward = static_cast<double>(work.member.member);
    return result;
  }
};

Config config_of(int64_t prompts, int64_t group) {
  Config config;
  config.datasets = {DatasetConfig{.prompts_per_step = prompts}};
  config.group_size = group;
  config.steps = 100;
  return config;
}

Begun busy_workers(int64_t size) {
  constexpr int64_t kGroup = 8;
  Begun run(config_of(size * kHeldEach / kGroup, kGroup), size, kHeldEach);
  TR_CHECK(std::ssize(run.state.workers) == size + 1 &&
               static_cast<int64_t>(run.state.leases.size()) == size * kHeldEach,
           "{} leases of {} workers", run.state.leases.size(), size);
  return run;
}

}  // namespace

Touches worker_losses(int64_t size) {
  Begun run = busy_workers(size);
  Touches touches;
  for (int64_t i = 0; i < kSome; ++i)
    touches.events.push_back(WorkerDown{worker_name(i * size / kSome), 0});
  touches.state = std::move(run.state);
  return touches;
}

Touches mass_loss(int64_t size) {
  Begun run = busy_workers(size);
  Touches touches;
  for (int64_t i = 1; i < size; ++i) touches.events.push_back(WorkerDown{worker_name(i), 0});
  touches.state = std::move(run.state);
  return touches;
}

Touches reconnects(int64_t size) {
  Begun run = busy_workers(size);
  Touches touches;
  for (int64_t i = 0; i < kSome; ++i) {
    const std::string name = worker_name(i * size / kSome);
    touches.events.push_back(WorkerDown{name, 0, /*silent=*/true});
    touches.events.push_back(WorkerUp{.worker = name, .session = 1, .slots = kHeldEach});
  }
  touches.state = std::move(run.state);
  return touches;
}

Touches departures(int64_t size) {
  Begun run(config_of(1, 1), kFewWorkers, 1);
  const auto come_and_go = [](int64_t i) -> std::vector<Event> {
    const std::string name = fmt::format("spot{:05}", i);
    return {WorkerUp{.worker = name, .slots = 1, .joined = true}, WorkerDown{name, 0}};
  };
  for (int64_t i = 0; i < size; ++i)
    for (const Event& event : come_and_go(i)) run.tell(event);
  TR_CHECK(std::ssize(run.state.away) == size, "{} are away", run.state.away.size());
  Touches touches{std::move(run.state), {}};
  for (int64_t i = size; i < size + kSome; ++i)
    for (const Event& event : come_and_go(i)) touches.events.push_back(event);
  return touches;
}

Touches stale_groups(int64_t size) {
  Config config = config_of(size, 1);
  config.mode = {.ahead = {2, 1}, .max_staleness = 1, .on_stale = OnStale::kDrop};
  Begun run(config, kFewWorkers, 3 * size / kFewWorkers);
  int64_t answered = 0;
  for (const auto& [work, lease] : run.state.leases.in_order())
    if (answered++ < 5 * size / 2) run.tell(run.answer(work, lease, Outcome::kFinished));
  run.tell(TrainerWants{"t", 0, 1});
  run.tell(Published{"t", 0, 1, "a1", "v1.json", "m1"});
  run.tell(TrainerWants{"t", 0, 2});
  TR_CHECK(std::ssize(run.state.policies.at(0).datasets[0].ready) == size / 2, "{} are ready",
           run.state.policies.at(0).datasets[0].ready.size());
  return {std::move(run.state), {Published{"t", 0, 2, "a2", "v2.json", "m2"}}, size};
}

Touches stalled_worker(int64_t size) {
  Config config = config_of(size * kHeldEach / 8, 8);
  config.retries.returned = 0;
  Begun run(config, size, kHeldEach + 1);
  run.tell(Stalled{worker_name(0), 0});
  TR_CHECK(run.state.workers.at(worker_name(0)).leased > 0, "nothing stands still");
  return {std::move(run.state), std::vector<Event>(kSome, Tick{})};
}

Touches streamed_step(int64_t size) {
  constexpr int64_t kGroup = 2;
  Config config = config_of(size, kGroup);
  config.mode = ModeOptions::preset(ModeName::kStreaming).mode();
  Begun run(config, kFewWorkers, 2 * size * kGroup / kFewWorkers);
  run.tell(TrainerWants{"t", 0, 1});
  Touches touches;
  for (const auto& [work, lease] : run.state.leases.in_order()) {
    if (work.member.prompt < size)
      touches.events.push_back(run.answer(work, lease, Outcome::kFinished));
  }
  TR_CHECK(std::ssize(touches.events) == size * kGroup, "{} samples", touches.events.size());
  touches.state = std::move(run.state);
  return touches;
}

Touches evaluation(int64_t size) {
  Config config = config_of(1, 1);
  config.eval.prompts = size;
  Begun run(config, kFewWorkers, size / kFewWorkers + 1);
  Touches touches;
  for (const auto& [work, lease] : run.state.leases.in_order()) {
    if (work.lane == Lane::kEval)
      touches.events.push_back(run.answer(work, lease, Outcome::kFinished));
  }
  TR_CHECK(std::ssize(touches.events) == size, "{} samples", touches.events.size());
  touches.state = std::move(run.state);
  return touches;
}

Touches held_out_failures(int64_t size) {
  Config config = config_of(1, 1);
  config.mode.ahead = {1, 1};
  config.eval.prompts = 2 * size;
  Begun run(config, size, 4);
  std::vector<Event> failures;
  for (const auto& [work, lease] : run.state.leases.in_order()) {
    if (work.lane == Lane::kTrain)
      run.tell(run.answer(work, lease, Outcome::kFinished));
    else if (std::ssize(failures) < kSome)
      failures.push_back(run.answer(work, lease, Outcome::kEnvFailed));
  }
  run.tell(TrainerWants{"t", 0, 1});
  run.install(run.tell(Published{"t", 0, 1, "a1", "v1.json", "m1"}));
  const Policy& policy = run.state.policies.at(0);
  TR_CHECK(policy.evaluation && policy.evaluation->version < policy.frontier, "nothing lags");
  return {std::move(run.state), std::move(failures)};
}

Touches failed_attempts(int64_t size) {
  constexpr int64_t kGroup = 8, kFailedEach = 7;
  Config config = config_of(size * kHeldEach / kGroup, kGroup);
  // No fault is the worker's here.
  config.quarantine.faults = 1 << 20;
  Begun run(config, size, kHeldEach);
  const auto leases = run.state.leases.in_order();
  std::map<WorkerId, int64_t> answered;
  std::vector<Event> failures;
  for (const auto& [work, lease] : leases) {
    const int64_t before = answered[lease.worker]++;
    if (lease.worker >= worker_name(size / 2)) {
      if (before == 0) run.tell(run.answer(work, lease, Outcome::kFinished));
    } else if (before < kFailedEach) {
      run.tell(run.answer(work, lease, Outcome::kEnvFailed));
    } else if (before == kFailedEach) {
      failures.push_back(run.answer(work, lease, Outcome::kEnvFailed));
    }
  }
  AttemptWindow& window = run.state.breakers.at({Role::kRollout, {}}).window;
  const double share = config.breaker.share;
  TR_CHECK(
      window.size() == 4 * size && 2 * window.workers_above(Outcome::kEnvFailed, share) == size,
      "{} attempts", window.size());
  failures.resize(kSome);
  return {std::move(run.state), std::move(failures)};
}

Touches broken_tasks(int64_t size) {
  Config config = config_of(size, 1);
  Begun run(config, kFewWorkers, size / kFewWorkers);
  const auto leases = run.state.leases.in_order();
  for (const auto& [work, lease] : leases)
    if (work.member.prompt % 2 == 0) run.tell(run.answer(work, lease, Outcome::kFinished));
  Touches touches;
  // More than the breaker looks at, and fewer than would halt the run.
  const int64_t in_a_row = config.breaker.window;
  for (const auto& [work, lease] : leases) {
    if (work.member.prompt % 2 == 0) continue;
    const AttemptResult word = run.answer(work, lease, Outcome::kTaskBroken);
    if (run.state.policies.at(0).datasets[0].broken.in_a_row < in_a_row) {
      run.tell(word);
    } else if (std::ssize(touches.events) < kSome) {
      touches.events.push_back(word);
    }
  }
  TR_CHECK(std::ssize(touches.events) == kSome, "{} words", touches.events.size());
  touches.state = std::move(run.state);
  return touches;
}

std::vector<TouchCase> touch_cases() {
  return {{"worker_losses", worker_losses, 64, 512},
          {"mass_loss", mass_loss, 64, 512},
          {"reconnects", reconnects, 64, 512},
          {"stalled_worker", stalled_worker, 64, 512},
          {"streamed_step", streamed_step, 512, 4096},
          {"evaluation", evaluation, 1024, 8192},
          {"broken_tasks", broken_tasks, 512, 4096},
          {"departures", departures, 512, 4096},
          {"stale_groups", stale_groups, 512, 4096},
          {"held_out_failures", held_out_failures, 64, 512},
          {"failed_attempts", failed_attempts, 64, 512}};
}

}  // namespace tailrace::scheduler
