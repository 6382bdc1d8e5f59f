#include "scheduler/service/service.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/wire/server.h"
#include "kernels/base/pulse.h"
#include "scheduler/decide/batches.h"
#include "scheduler/decide/decide.h"
#include "scheduler/service/first_attempts.h"
#include "scheduler/service/inbox.h"
#include "scheduler/service/outbox.h"
#include "scheduler/service/progress_watch.h"
#include "scheduler/service/run_metrics.h"
#include "scheduler/service/store_actor.h"
#include "scheduler/service/timeline.h"
#include "scheduler/state/describe.h"
#include "scheduler/state/waits.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/trajectory_store.h"

namespace tailrace::scheduler {
namespace {

constexpr std::chrono::milliseconds kLongestWait{100};
constexpr std::chrono::seconds kWaitsInterval{1};

}  // namespace

struct Service::Impl {
  // The members are made in the order of a start: the old state, then the store, which is compared
  // with what that state counts on, then a journal whose first snapshot is that state.
  Impl(ServiceOptions given, const Clock& clock_in, Log& log_in)
      : options(std::move(given)),
        clock(clock_in),
        log(log_in),
        state(restore_state()),
        server(options.endpoint, options.link),
        store(
            open_store(), options.disk_patience, [this] { server.wake(); }, options.bodies),
        journal(open_journal()),
        metrics(options.paths, policy(), options.num_samples, options.datasets, options.text, log,
                options.facts),
        timeline(options.paths, state, options.storage.timeline_rows, log),
        inbox(state, feeder(), store, server, metrics, timeline, options.judge, log),
        outbox(state, feeder(), store, server, metrics, options.datasets, log),
        progress(options.no_progress, [this](const WorkerId& worker, uint64_t session) {
          return server.progress(worker, session);
        }) {
    // Last: what it feeds may reach all of the above.
    if (resumed) begin_again();
  }

  std::function<void(const Event&)> feeder() {
    return [this](const Event& event) { feed(event); };
  }

  // ---- start

  State restore_state() {
    // The new config is validated before the old state is touched.
    options.config.validate();
    auto restored = restore(options.paths.journal());
    if (!restored) throw UserError("{}", restored.failure().message);
    for (const std::string& note : restored.value().notes) log.warning("{}", note);
    left_out = restored.value().left_out;
    damage = join_texts(restored.value().lost, "; ");
    start_time = clock.now();
    State found =
        restored.value().state ? *std::move(restored.value().state) : State(options.config);
    check_checkpoints(found);
    if (!restored.value().state) return found;
    resumed = true;
    if (found.config.datasets.size() != options.config.datasets.size()) {
      throw UserError(
          "{} was begun with {} datasets, now there are {}: a run keeps its datasets. Start a new "
          "run directory for other ones",
          options.paths.root.string(), found.config.datasets.size(),
          options.config.datasets.size());
    }
    base_time = found.now;
    return found;
  }

  // A journal that ends long before a checkpoint was lost or damaged: prompts that were trained
  // would be sampled again, on weights that are trained, and the metrics since be lost. Refused
  // before anything is changed, so that every launch says so until it is mended.
  void check_checkpoints(const State& found) const {
    const auto newest = newest_checkpoint(options.paths);
    if (!newest || !is_beyond(found.policies.at(kPolicy), *newest)) return;
    const std::string checkpoint =
        (options.paths.checkpoints() / checkpoint_name(*newest)).string();
    throw UserError(
        "{} has the checkpoint {}, but its journal is missing or damaged: where the run stood is "
        "not known{}.\n       Put {} back, or start a new run directory from that checkpoint "
        "(model.path={}).",
        options.paths.root.string(), checkpoint_name(*newest),
        damage.empty() ? "" : fmt::format(" ({})", damage), options.paths.journal().string(),
        checkpoint);
  }

  // Bodies that the journal remembers and the store has not are `missing`. Bodies in the store that
  // nobody remembers go.
  TrajectoryStore open_store() {
    auto opened = TrajectoryStore::open(options.paths.trajectories(), options.storage.store_bytes);
    if (!opened) throw UserError("{}", opened.failure().message);
    for (const std::string& note : opened.value().notes()) log.warning("{}", note);
    const std::vector<BodyId> held = held_bodies(state);
    for (const BodyId& body : held) {
      if (!opened.value().contains(body)) missing.bodies.push_back(body);
    }
    // Bodies whose event never reached the journal: their messages were not acknowledged and come
    // again.
    opened.value().retain_only(held);
    return std::move(opened).value();
  }

  Journal open_journal() {
    std::error_code error;
    // Out of the way of the next file, and not gone: a person may want to look at it.
    if (!left_out.empty())
      std::filesystem::rename(left_out, left_out.string() + ".left_out", error);
    if (error) throw UserError("{}", describe_errno("rename", left_out, error.value()));
    auto opened = Journal::open(options.paths.journal(), state,
                                {.segment_bytes = options.storage.journal_bytes,
                                 .archive = options.storage.archive,
                                 .patience = options.disk_patience});
    if (!opened) throw UserError("{}", opened.failure().message);
    return std::move(opened).value();
  }

  void begin_again() {
    log.info("continuing at version {}, newest checkpoint {}", version(), policy().durable);
    if (!missing.bodies.empty()) {
      log.warning("{} bodies did not reach the disk; their groups are sampled again",
                  missing.bodies.size());
      // Before `restarted`, which asks for open reports again: an evaluation without its bodies
      // must not be among them.
      feed(missing);
    }
    feed(Restarted{.config = options.config});
    describe_batch();
  }

  // The row of the step that the trainer works on tells of its batch, and an earlier process had
  // asked for that. The trainer may publish at once, so this is waited for.
  void describe_batch() {
    const int64_t step = version() + 1;
    if (!policy().batches.contains(step)) return;
    std::vector<BodyId> ids;
    std::map<LeaseId, HandOver::Item> items;
    for (const HandOver::Item& item : make_hand_over(kPolicy, policy(), step).items) {
      ids.push_back({Lane::kTrain, item.lease});
      items[item.lease] = item;
    }
    store.describe(std::move(ids), [this, step, items](const auto& found, const auto&) {
      std::vector<TrajectoryHeader> headers;
      for (const StoreActor::Described& body : found) {
        const HandOver::Item& item = items.at(body.header.lease);
        headers.push_back(body.header);
        headers.back().reward = item.reward;
        headers.back().judged = item.judged;
      }
      metrics.on_batch(step, headers);
    });
    if (auto synced = store.sync(); !synced) return fail(synced.failure().message);
    store.run_answers();
  }

  // ---- the loop

  // The state's time goes on where it was, whatever the machine's clock says.
  Time now() const { return base_time + (clock.now() - start_time); }

  ServiceResult run(const std::atomic<bool>& stop) {
    bool stop_told = false;
    last_event = logged_waits = clock.now();
    while (true) {
      // A deadline or a signal waits at most as long; messages and the store's answers wake it.
      auto events = server.receive(kLongestWait);
      if (!events.empty()) last_event = logged_waits = clock.now();
      // Also while the store stands still, which it says itself.
      beat();
      // Before the new messages: answers belong to older ones.
      store.run_answers();
      for (wire::ServerEvent& event : events) inbox.take(std::move(event));
      for (const Stalled& change : progress.look(state, clock.now())) tell_progress(change);
      if (stop.load() && !stop_told) {
        stop_told = true;
        log.info("a stop was asked for");
        feed(StopRequested{});
      }
      // Each event does what is due by its time (law 14.2), so that a tick is fed only where none
      // has come.
      if (const auto deadline = next_deadline(state); deadline && *deadline <= now()) feed(Tick{});
      // The one order that survives a kill anywhere: written, then done, then acknowledged (law
      // 12.1). On a failure neither of the last two happens, and the messages come again.
      commit();
      collect_failures();  // of the store: what it could not keep comes again
      const bool written = failure.empty();
      if (failure.empty()) perform();
      if (failure.empty()) inbox.acknowledge();
      collect_failures();
      if (!failure.empty()) {
        // A halt is an orderly end: all that led to it is written. A failing disk is not.
        if (written && !state.halted.empty()) {
          write_last_snapshot();
          explain_halt();
        }
        return finish({ServiceResult::End::kFailed, failure, version()});
      }
      // As orderly an end as a halt: all that led to it is written.
      if (!hopeless.empty()) {
        write_last_snapshot();
        return finish({ServiceResult::End::kFailed, hopeless, version()});
      }
      // An answer of the store may still feed an event, and that one may have actions.
      if (outbox.run_done() && actions.empty() && store.idle()) return finish_well();
      watch();
    }
  }

  const Policy& policy() const { return state.policies.at(kPolicy); }
  int64_t version() const { return policy().published; }

  void feed(const Event& event) {
    // Remembered: decide() changes the state, and what has just become true is told once.
    const bool begun = state.begun, halted = !state.halted.empty();
    const Time time = now();
    Actions made = decide(state, event, time);
    // After decide(): the entry holds a digest of what it gave (law 13.1).
    journal.append(event, time, made);
    timeline.observe(event, made, state);
    if (log.enabled(LogLevel::kDebug)) {
      log.debug("{}", describe(event));
      for (const Action& action : made) log.debug("  {}", describe(action));
    }
    for (const Action& action : made) {
      // At once, not with the other actions: rows go before the event is committed, as they come.
      if (const auto* forked = std::get_if<Forked>(&action)) metrics.on_fork(forked->from);
    }
    std::move(made.begin(), made.end(), std::back_inserter(actions));
    // A run that is continued has begun long ago; these processes begin with their first install.
    if (std::holds_alternative<Installed>(event) && !installed) {
      installed = true;
      options.on_begun();
    }
    if (const auto* result = std::get_if<AttemptResult>(&event); result && hopeless.empty())
      hopeless = first_attempts.look(state, *result, time);
    if (state.begun != begun) log.info("the first worker has its weights");
    // decide() knows a body by its name alone.
    if (!halted && !state.halted.empty() && std::holds_alternative<BodiesLost>(event))
      halted_by_loss = true;
  }

  void tell_progress(const Stalled& change) {
    const auto held = state.workers.at(change.worker).leased;
    feed(change);
    if (!change.stalled) return log.info("{} makes progress again", change.worker);
    const auto kept = state.workers.at(change.worker).leased;
    log.warning(
        "{} makes no progress; of its {} samples {} went to others, and the rest will where there "
        "is room",
        change.worker, held, held - kept);
  }

  // Bodies first: neither the journal nor a snapshot may remember what the store has forgotten.
  void commit() {
    // One action that needs the disk takes all events before it along: they are what led to it.
    timeline.flush();
    const bool sync = std::ranges::any_of(actions, needs_disk);
    if (sync) {
      if (auto synced = store.sync(); !synced) return fail(synced.failure().message);
    }
    if (auto committed = journal.commit(sync); !committed) return fail(committed.failure().message);
    // Behind the commit: a cut leaves a file whose events are all written.
    if (journal.is_due()) cut();
    if (auto written = journal.look(); !written) fail(written.failure().message);
  }

  // Its actions may not be performed yet. After a kill here `restarted` gives them again.
  void cut() {
    if (auto done = journal.cut(state); !done) return fail(done.failure().message);
    store.sync([this](const Result<void>& synced) {
      if (!synced) return fail(synced.failure().message);
      journal.bodies_are_on_disk();
    });
  }

  void perform() {
    for (const Action& action : std::exchange(actions, {})) outbox.perform(action);
  }

  void collect_failures() {
    for (const std::string& why : {inbox.failure(), outbox.failure(), store.failure()}) {
      if (!why.empty()) fail(why);
    }
  }

  // With what is wrong on the disk. What the state lacks another part of the run may have, and then
  // that part seems to be wrong.
  void explain_halt() {
    if (halted_by_loss)
      failure +=
          fmt::format(".\n       {}", store.why_lost().empty()
                                          ? "It is not in " + options.paths.trajectories().string()
                                          : store.why_lost());
    if (!damage.empty())
      failure += fmt::format(
          ".\n       The journal was damaged when this scheduler began, which may be why: "
          "{}",
          damage);
  }

  void fail(std::string why) {
    if (failure.empty()) failure = std::move(why);
  }

  // The last thing on disk is a snapshot: a build with another law may go on from it.
  void write_last_snapshot() {
    auto written = store.sync();
    if (written) written = journal.rotate(state);
    if (!written) log.warning("the journal has no last snapshot: {}", written.failure().message);
  }

  ServiceResult finish_well() {
    if (!saved(policy())) log.warning("no checkpoint of version {} was written in time", version());
    write_last_snapshot();
    const bool stopped = state.end->reason == RunEnd::Reason::kStopped;
    return finish(
        {stopped ? ServiceResult::End::kStopped : ServiceResult::End::kDone, "", version()});
  }

  ServiceResult finish(ServiceResult result) {
    if (result.end == ServiceResult::End::kFailed) log.error("{}", result.message);
    log.info("the run ends at version {}", result.version);
    // A worker that is not told waits for its scheduler until its patience ends.
    for (const auto& [id, worker] : state.workers)
      (void)server.send(id, worker.session, wire::Shutdown{result.message});
    server.flush(options.flush_timeout);
    return result;
  }

  // Each doubling, so that a flood of garbage does not become a flood of lines.
  void report_malformed() {
    const int64_t count = server.counters().malformed;
    if (count < next_malformed) return;
    next_malformed = 2 * count;
    log.warning("frames that were refused: {}, the latest: {}", count, server.last_malformed());
  }

  void watch() {
    report_malformed();
    const Time time = clock.now();
    if (time - told_waits < kWaitsInterval) return;
    told_waits = time;
    std::vector<std::string> waits = waits_of(state, now());
    std::ranges::move(server.held(), std::back_inserter(waits));
    const std::string line = join_texts(waits, "; ");
    const Inbox::Failed& failed = inbox.failed();
    options.on_waits({.line = failed.in_row > 0 ? fmt::format("{}; {}", failed.last, line) : line,
                      .quiet = std::chrono::duration_cast<std::chrono::seconds>(time - last_event),
                      .failed_in_row = failed.in_row});
    if (time - logged_waits < options.watchdog) return;
    logged_waits = time;
    log.info("waiting: {}", line);
  }

  ServiceOptions options;
  const Clock& clock;
  Log& log;
  Time start_time{}, base_time{};
  bool resumed = false;
  std::filesystem::path left_out;  // of the journal
  std::string damage;              // of the journal, when it was read; empty: none
  State state;
  BodiesLost missing;
  wire::WorkerServer server;
  StoreActor store;
  Journal journal;
  RunMetrics metrics;
  Timeline timeline;
  Inbox inbox;
  Outbox outbox;
  ProgressWatch progress;
  FirstAttempts first_attempts;
  std::string hopeless;  // why no attempt will ever work; empty: one may

  Time last_event{};  // of this process's clock
  Time told_waits{}, logged_waits{};
  Actions actions;  // decided, not yet performed
  bool installed = false, halted_by_loss = false;
  int64_t next_malformed = 1;
  std::string failure;
};

Service::Service(ServiceOptions options, const Clock& clock, Log& log)
    : impl_(std::make_unique<Impl>(std::move(options), clock, log)) {}
Service::~Service() = default;

ServiceResult Service::run() { return impl_->run(stop_); }

}  // namespace tailrace::scheduler
