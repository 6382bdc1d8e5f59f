#include "scheduler/service/service.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/error.h"
#include "core/wire/server.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/decide/decide.h"
#include "scheduler/service/run_metrics.h"
#include "scheduler/state/waits.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/trajectory_store.h"

namespace tailrace::scheduler {
namespace {

using std::chrono::milliseconds;

// A run trains one policy. With several, a worker says which one is its own (Hello).
constexpr PolicyId kPolicy = 0;

constexpr milliseconds kLongestWait{100};
constexpr size_t kReasonBytes = 400;

WorkerRole role_of(wire::Role role) {
  switch (role) {
    case wire::Role::kRollout:
      return WorkerRole::kRollout;
    case wire::Role::kReward:
      return WorkerRole::kReward;
    case wire::Role::kTrainer:
      break;
  }
  return WorkerRole::kTrainer;
}

AttemptResult event_of(const WorkerId& worker, const Trajectory& trajectory) {
  const bool failed =
      trajectory.outcome != Outcome::kFinished && trajectory.outcome != Outcome::kTruncated;
  return {.worker = worker,
          .lease = trajectory.lease,
          .lane = trajectory.lane,
          .outcome = trajectory.outcome,
          .tokens = trajectory.num_sampled(),
          .min_version = trajectory.min_version(),
          .max_version = trajectory.max_version(),
          .reward = trajectory.reward,
          .needs_verifier = !trajectory.reward && !trajectory.verifier.empty(),
          .reason = failed ? trajectory.evidence.substr(0, kReasonBytes) : ""};
}

// Lost to a machine that loses power, these would be trained on twice, or never.
bool must_reach_disk(const Event& event) {
  return std::holds_alternative<TrainerWants>(event) || std::holds_alternative<Published>(event) ||
         std::holds_alternative<Durable>(event) || std::holds_alternative<RolledBack>(event) ||
         std::holds_alternative<Restarted>(event);
}

}  // namespace

struct Service::Impl {
  Impl(ServiceOptions given, const Clock& clock_in, Log& log_in)
      : options(std::move(given)),
        clock(clock_in),
        log(log_in),
        state(restore_state()),
        store(open_store()),
        journal(open_journal()),
        metrics(options.paths, policy().frontier, options.num_samples, log),
        server(options.endpoint, options.link) {
    start_time = clock.now();
    base_time = state.now;
    if (resumed) begin_again();
  }

  // ---- start

  State restore_state() {
    options.config.validate();
    auto restored = restore(options.paths.journal());
    if (!restored) throw UserError("{}", restored.failure().message);
    for (const std::string& note : restored.value().notes) log.warning("{}", note);
    if (!restored.value().state) return State(options.config);
    resumed = true;
    State found = *std::move(restored.value().state);
    if (found.config.domains.size() != options.config.domains.size()) {
      throw UserError(
          "{} was begun with {} datasets, now there are {}: a run keeps its datasets. Start a new "
          "run "
          "directory for other ones",
          options.paths.root.string(), found.config.domains.size(), options.config.domains.size());
    }
    return found;
  }

  TrajectoryStore open_store() {
    auto opened = TrajectoryStore::open(options.paths.trajectories(), options.segments.store_bytes);
    if (!opened) throw UserError("{}", opened.failure().message);
    for (const std::string& note : opened.value().notes()) log.warning("{}", note);
    return std::move(opened).value();
  }

  Journal open_journal() {
    auto opened = Journal::open(options.paths.journal(), state, options.segments.journal_bytes);
    if (!opened) throw UserError("{}", opened.failure().message);
    return std::move(opened).value();
  }

  void begin_again() {
    log.info("continuing at version {}, newest checkpoint {}", version(), policy().durable);
    BodiesLost lost;
    for (const BodyId& body : held_bodies(state)) {
      if (!store.contains(body)) lost.bodies.push_back(body);
    }
    if (!lost.bodies.empty()) {
      log.warning("{} bodies did not reach the disk; their groups are sampled again",
                  lost.bodies.size());
      feed(lost);
    }
    feed(Restarted{.config = options.config, .connections_kept = false});
    store.retain_only(held_bodies(state));
  }

  // ---- the loop

  Time now() const { return base_time + (clock.now() - start_time); }

  ServiceResult run(const std::atomic<bool>& stop) {
    bool stop_told = false;
    last_event = clock.now();
    while (true) {
      const auto events = server.receive(kLongestWait);
      if (!events.empty()) last_event = clock.now();
      for (size_t i = 0; i < events.size() && failure.empty(); ++i) handle(events, i);
      if (stop.load() && !stop_told) {
        stop_told = true;
        log.info("a stop was asked for");
        feed(StopRequested{});
      }
      if (const auto deadline = next_deadline(state); deadline && *deadline <= now()) feed(Tick{});
      if (failure.empty()) commit();
      if (failure.empty()) perform();
      if (failure.empty()) acknowledge();
      if (!failure.empty()) return finish({ServiceResult::End::kFailed, failure, version()});
      if (over())
        return finish({ended_by_stop() ? ServiceResult::End::kStopped : ServiceResult::End::kDone,
                       "", version()});
      watch();
    }
  }

  const Policy& policy() const { return state.policies.at(kPolicy); }
  int64_t version() const { return policy().published; }
  bool ended_by_stop() const { return state.end && state.end->reason == RunEnd::Reason::kStopped; }

  void feed(const Event& event) {
    const int32_t forks = policy().forks;
    const Time time = now();
    journal.append(event, time);
    reaches_disk = reaches_disk || must_reach_disk(event);
    Actions made = decide(state, event, time);
    if (log.enabled(LogLevel::kDebug)) {
      log.debug("{}", describe(event));
      for (const Action& action : made) log.debug("  {}", describe(action));
    }
    std::move(made.begin(), made.end(), std::back_inserter(actions));
    if (policy().forks != forks) metrics.on_fork(policy().frontier);
  }

  void commit() {
    // Bodies first: the journal must not remember what the store has forgotten.
    if (reaches_disk) {
      if (auto synced = store.sync(); !synced) return fail(synced.failure().message);
    }
    if (auto committed = journal.commit(reaches_disk); !committed)
      return fail(committed.failure().message);
    reaches_disk = false;
    if (auto rotated = journal.rotate_if_large(state); !rotated)
      return fail(rotated.failure().message);
  }

  void perform() {
    const Actions todo = std::exchange(actions, {});
    for (const Action& action : todo) {
      if (!failure.empty()) return;
      std::visit([this](const auto& a) { act(a); }, action);
    }
  }

  void acknowledge() {
    for (const auto& [worker, sequence] : acks) server.acknowledge(worker, sequence);
    acks.clear();
  }

  void fail(std::string why) {
    if (failure.empty()) failure = std::move(why);
  }

  ServiceResult finish(ServiceResult result) {
    if (result.end == ServiceResult::End::kFailed) log.error("{}", result.message);
    log.info("the run ends at version {}", result.version);
    for (const auto& [id, worker] : state.workers) server.send(id, wire::Shutdown{result.message});
    server.flush(options.flush_timeout);
    return result;
  }

  void watch() {
    if (clock.now() - last_event < options.watchdog) return;
    last_event = clock.now();
    log.info("waiting: {}", describe_waits(state));
  }

  // ---- what arrives

  void handle(const std::vector<wire::ServerEvent>& events, size_t index) {
    const wire::ServerEvent& event = events[index];
    if (const auto* up = std::get_if<wire::WorkerUp>(&event)) return on_up(up->hello);
    if (const auto* down = std::get_if<wire::WorkerDown>(&event)) {
      if (!comes_back(events, index, down->worker)) on_down(*down);
      return;
    }
    const auto& incoming = std::get<wire::Incoming>(event);
    acks[incoming.worker] = std::max(acks[incoming.worker], incoming.sequence);
    std::visit([&](const auto& message) { on(incoming.worker, message); }, incoming.message);
  }

  // A connection made anew by the same process: worker_up alone says it, and nothing counts as
  // lost.
  bool comes_back(const std::vector<wire::ServerEvent>& events, size_t index,
                  const WorkerId& id) const {
    const auto known = state.workers.find(id);
    if (known == state.workers.end()) return false;
    return std::any_of(events.begin() + static_cast<std::ptrdiff_t>(index), events.end(),
                       [&](const wire::ServerEvent& e) {
                         const auto* up = std::get_if<wire::WorkerUp>(&e);
                         return up != nullptr && up->hello.worker == id &&
                                up->hello.incarnation == known->second.incarnation;
                       });
  }

  void on_up(const wire::Hello& hello) {
    log.info("{} is here: {} pid={} slots={} {}", hello.worker, wire::name(hello.role), hello.pid,
             hello.slots, hello.numerics_class);
    check_numerics(hello);
    forget_actions_for(hello.worker);
    feed(WorkerUp{.worker = hello.worker,
                  .role = role_of(hello.role),
                  .policy = kPolicy,
                  .incarnation = hello.incarnation,
                  .slots = hello.slots});
  }

  // What was decided in this batch of messages, before the session ended, must not reach the next
  // one.
  void forget_actions_for(const WorkerId& id) {
    std::erase_if(actions, [&](const Action& action) {
      return std::visit(
          [&](const auto& a) {
            if constexpr (requires { a.worker; }) {
              return a.worker == id;
            } else {
              return false;
            }
          },
          action);
    });
  }

  // Rule 3 holds inside one numerics class: between two, log-probabilities differ and are corrected
  // for.
  void check_numerics(const wire::Hello& hello) {
    if (hello.role == wire::Role::kReward || hello.numerics_class.empty()) return;
    if (numerics_class.empty()) numerics_class = hello.numerics_class;
    if (hello.numerics_class == numerics_class) return;
    log.warning(
        "{} computes as {}, others as {}: sampled and trained log-probabilities will not be equal "
        "bit for bit",
        hello.worker, hello.numerics_class, numerics_class);
  }

  void on_down(const wire::WorkerDown& down) {
    log.warning("{} is gone: {}", down.worker, down.reason);
    feed(WorkerDown{down.worker});
  }

  void on(const WorkerId& worker, const wire::TrajectoryResult& message) {
    const Trajectory& trajectory = message.trajectory;
    if (!expects_result(state, worker, trajectory.lane, trajectory.lease)) return;  // late: fenced
    const AttemptResult event = event_of(worker, trajectory);
    metrics.on_attempt(event.outcome);
    const bool has_body =
        event.outcome == Outcome::kFinished || event.outcome == Outcome::kTruncated;
    if (has_body) {
      const BodyId id{trajectory.lane, trajectory.lease};
      if (auto put = store.put(id, wire::encode_trajectory(trajectory)); !put)
        return fail(put.failure().message);
    } else {
      log.info("{} failed at {}: {} {}", to_string(trajectory.lease), worker, name(event.outcome),
               event.reason);
    }
    feed(event);
  }

  void on(const WorkerId& worker, const wire::Verdict& verdict) {
    if (verdict.reward && !verdict.metrics.empty())
      verdict_metrics[{verdict.lane, verdict.lease}] = verdict.metrics;
    if (!verdict.reward)
      log.info("{} was not scored by {}: {}", to_string(verdict.lease), worker, verdict.failure);
    feed(Reward{worker, verdict.lease, verdict.lane, verdict.verify_attempt, verdict.reward,
                verdict.failure.substr(0, kReasonBytes)});
  }

  void on(const WorkerId& worker, const wire::Installed& message) {
    feed(Installed{worker, message.policy, message.version, message.digest});
  }
  void on(const WorkerId& worker, const wire::InstallFailed& message) {
    log.warning("{} could not install version {}: {}", worker, message.version, message.reason);
    feed(InstallFailed{worker, message.policy, message.version,
                       message.reason.substr(0, kReasonBytes)});
  }

  void on(const WorkerId& worker, const wire::TrainerReady& ready) {
    if (ready.version != version())
      log.info("the trainer holds version {}, the run is at {}", ready.version, version());
    const auto known = state.workers.find(worker);
    const uint64_t process = known == state.workers.end() ? 0 : known->second.incarnation;
    const int64_t before = version();
    feed(RolledBack{ready.policy, ready.version, ready.digest, ready.manifest, process});
    if (version() > before) metrics.on_published(ready.version, ready.metrics, now());
    if (state.end) ask_to_save();
  }
  void on(const WorkerId&, const wire::TrainerWants& wants) {
    feed(TrainerWants{wants.policy, wants.step});
  }

  void on(const WorkerId&, const wire::Published& message) {
    const int64_t before = version();
    feed(Published{message.policy, message.version, message.digest, message.manifest});
    if (version() > before) metrics.on_published(message.version, message.metrics, now());
  }
  void on(const WorkerId&, const wire::Durable& message) {
    log.info("checkpoint of version {}: {}", message.version, message.path);
    feed(Durable{message.policy, message.version});
  }
  void on(const WorkerId&, const wire::Progress& progress) {
    if (!progress.metrics.empty()) metrics.on_progress(progress);
  }
  void on(const WorkerId& worker, const wire::WorkerFailed& message) {
    fail(fmt::format("{}: {}", worker, message.reason));
  }

  // Heartbeats stay inside the link; the rest goes the other way and is refused by the server.
  template <class Other>
  void on(const WorkerId& worker, const Other&) {
    log.warning("{} sent a message that is not a worker's to send", worker);
  }

  // ---- what decide() asks for

  void act(const Grant& a) { server.send(a.worker, wire::Grant{a.lease, a.lane, a.version}); }
  void act(const Abort& a) { server.send(a.worker, wire::Abort{a.lease, a.lane}); }
  void act(const Install& a) {
    server.send(a.worker, wire::Install{a.policy, a.version, a.digest, a.manifest});
  }

  void act(const Verify& a) {
    auto body = load({a.lane, a.lease});
    if (!body) return;
    server.send(a.worker,
                wire::Verify{a.lease, a.lane, a.verify_attempt, body->verifier, body->evidence});
  }

  void act(const HandOver& a) {
    wire::Batch batch{.policy = a.policy, .step = a.step, .trajectories = {}};
    std::vector<Trajectory> bodies;
    for (const HandOver::Item& item : a.items) {
      auto body = load({Lane::kTrain, item.lease});
      if (!body) return;
      body->reward = item.reward;
      batch.trajectories.push_back(wire::encode_trajectory(*body));
      add_verdict_metrics({Lane::kTrain, item.lease}, *body);
      bodies.push_back(*std::move(body));
    }
    metrics.on_batch(a.step, bodies, now());
    if (const auto trainer = trainer_of(a.policy)) server.send(*trainer, batch);
  }

  void act(const Release& a) {
    store.release(a.bodies);
    for (const BodyId& body : a.bodies) verdict_metrics.erase(body);
  }
  void act(const TaskDone& a) {
    metrics.on_task_done(a.end);
    if (a.end == TaskEnd::kFailed)
      log.warning("prompt {} of epoch {} failed for good", a.task.prompt, a.task.epoch);
  }
  void act(const TaskWithdrawn& a) {
    log.info("prompt {} of epoch {} is trained again on other weights", a.task.prompt,
             a.task.epoch);
  }

  void act(const EvalDone& a) {
    std::vector<Trajectory> bodies;
    for (const EvalDone::Item& item : a.items) {
      const BodyId id{Lane::kEval, item.lease};
      if (!item.reward || !store.contains(id)) continue;
      auto body = load(id);
      if (!body) return;
      body->reward = item.reward;
      add_verdict_metrics(id, *body);
      bodies.push_back(*std::move(body));
    }
    metrics.on_evaluation(a, bodies);
  }

  void act(const RunDone& a) {
    log.info("nothing more to do at version {}; {} prompts unreached", version(), a.end.unreached);
    save_deadline = clock.now() + options.save_timeout;
    ask_to_save();
  }
  void act(const Halt& a) { fail(a.reason); }

  // ---- the end

  void ask_to_save() {
    const auto trainer = trainer_of(kPolicy);
    if (trainer && !saved()) server.send(*trainer, wire::Save{kPolicy});
  }

  bool saved() const { return version() < 0 || policy().durable >= version(); }

  // Done, and the last version is safe. A trainer that dies now comes back with an older one, which
  // withdraws the end, and the run goes on.
  bool over() {
    if (!state.end || !save_deadline) return false;
    if (saved()) return true;
    if (ended_by_stop() && !trainer_of(kPolicy))
      return true;  // nobody could save; the run can be continued
    if (clock.now() < *save_deadline) return false;
    log.warning("no checkpoint of version {} within {} s", version(), options.save_timeout.count());
    return true;
  }

  // ---- helpers

  std::optional<WorkerId> trainer_of(PolicyId policy) const {
    for (const auto& [id, worker] : state.workers) {
      if (worker.role == WorkerRole::kTrainer && worker.policy == policy) return id;
    }
    return std::nullopt;
  }

  // Only for people: the batch itself must be the same bytes after a restart.
  void add_verdict_metrics(const BodyId& id, Trajectory& trajectory) const {
    const auto more = verdict_metrics.find(id);
    if (more == verdict_metrics.end()) return;
    trajectory.metrics.insert(trajectory.metrics.end(), more->second.begin(), more->second.end());
  }

  // Nothing: the run has failed, with the reason.
  std::optional<Trajectory> load(const BodyId& id) {
    auto bytes = store.get(id);
    if (!bytes) return fail(bytes.failure().message), std::nullopt;
    auto trajectory = wire::decode_trajectory(bytes.value());
    if (!trajectory) return fail(trajectory.failure().message), std::nullopt;
    return std::move(trajectory).value();
  }

  ServiceOptions options;
  const Clock& clock;
  Log& log;
  bool resumed = false;
  State state;
  TrajectoryStore store;
  Journal journal;
  RunMetrics metrics;
  wire::WorkerServer server;

  Time start_time{},
      base_time{};  // the state's time goes on where it was, whatever the machine's clock says
  Time last_event{};
  std::optional<Time> save_deadline;
  Actions actions;                    // decided, not yet performed
  std::map<WorkerId, uint64_t> acks;  // arrived, not yet acknowledged
  bool reaches_disk = false;          // the next commit
  std::map<BodyId, MetricList>
      verdict_metrics;         // what verifiers measured; lost with the process, unlike rewards
  std::string numerics_class;  // of the first worker that computes
  std::string failure;
};

Service::Service(ServiceOptions options, const Clock& clock, Log& log)
    : impl_(std::make_unique<Impl>(std::move(options), clock, log)) {}
Service::~Service() = default;

ServiceResult Service::run() { return impl_->run(stop_); }

}  // namespace tailrace::scheduler
