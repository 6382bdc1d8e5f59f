#include "scheduler/service/timeline.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/trajectory/sample_name.h"
#include "scheduler/service/policy.h"

namespace tailrace::scheduler {
namespace {

// Bytes at the file's end in which lengths of samples are looked for that the state still holds.
constexpr size_t kLookBackBytes = size_t{64} << 20;

// The worker that the event is about: its session began or ended, or it cannot go on.
const WorkerId* worker_of(const Event& event) {
  if (const auto* up = std::get_if<WorkerUp>(&event)) return &up->worker;
  if (const auto* down = std::get_if<WorkerDown>(&event)) return &down->worker;
  if (const auto* failed = std::get_if<WorkerFailed>(&event)) return &failed->worker;
  return nullptr;
}

bool concerns(const Event& event, const WorkerId& worker) {
  const WorkerId* of = worker_of(event);
  return of != nullptr && *of == worker;
}

bool same_lease(const Lease& a, const Lease& b) {
  return a.kind == b.kind && a.worker == b.worker && a.attempt == b.attempt &&
         a.verify_attempt == b.verify_attempt;
}

const AttemptResult* result_of(const WorkId& work, const Lease& lease, const Event& event) {
  const auto* result = std::get_if<AttemptResult>(&event);
  // A late answer of a fenced attempt (law 6.4) must not be shown as the end of the lease that took
  // its place: worker and attempt have to agree.
  const bool is_it = result != nullptr && lease.kind == LeaseKind::kGenerate &&
                     result->worker == lease.worker && result->lane == work.lane &&
                     result->lease == LeaseId{work.member, lease.attempt};
  return is_it ? result : nullptr;
}

const Reward* verdict_of(const WorkId& work, const Lease& lease, const Event& event) {
  const auto* reward = std::get_if<Reward>(&event);
  const bool is_it = reward != nullptr && lease.kind == LeaseKind::kVerify &&
                     reward->worker == lease.worker && reward->lane == work.lane &&
                     reward->lease == LeaseId{work.member, lease.attempt} &&
                     reward->verify_attempt == lease.verify_attempt;
  return is_it ? reward : nullptr;
}

// The reason why a lease ended without an answer of its worker.
std::string_view why_ended(const Lease& lease, const Event& event, const State& state) {
  if (const auto* down = std::get_if<WorkerDown>(&event);
      down != nullptr && down->worker == lease.worker && !down->silent)
    return "returned";
  if (concerns(event, lease.worker) || !state.workers.contains(lease.worker)) return "lost";
  return lease.deadline <= state.now ? "expired" : "aborted";
}

// A part of an install of this worker.
std::string_view how_ended(const Event& event, const WorkerId& id) {
  const auto by_it = [&](const auto* answer) { return answer != nullptr && answer->worker == id; };
  if (by_it(std::get_if<Staged>(&event))) return "staged";
  if (by_it(std::get_if<Installed>(&event))) return "installed";
  return by_it(std::get_if<InstallFailed>(&event)) ? "failed" : "lost";
}

// It tells of the end of a lease that the state holds.
bool is_open(const TimelineRow& row, const State& state) {
  if (!is_lease(row.what) || !row.sample) return false;
  const Lease* lease = state.leases.find({row.lane, row.sample->lease.member});
  return lease != nullptr && lease->worker == row.worker &&
         lease->attempt == row.sample->lease.attempt && lease->verify_attempt == row.verify_attempt;
}

// A worker came or went, or the scheduler did.
bool moves_workers(const Event& event) {
  return worker_of(event) != nullptr || std::holds_alternative<Restarted>(event);
}

// The trainer has a batch, or a part of one: between two parts it may wait.
bool has_work(const Policy& policy) { return policy.handed || policy.told > 0; }

}  // namespace

Timeline::Timeline(const RunPaths& paths, const State& state, int64_t rows_per_step, Log& log,
                   std::optional<double> begun)
    : log_(log), rows_per_step_(rows_per_step) {
  if (rows_per_step > 0) open(paths, state, begun.value_or(unix_seconds()));
}

// ---- start

void Timeline::warn(std::string_view what, const std::string& why) {
  failure_ = why;
  log_.warning("{}: {}", what, why);
}

void Timeline::open(const RunPaths& paths, const State& state, double begun) {
  constexpr std::string_view kNone = "no timeline is written";
  const auto path = paths.timeline();
  remember_bodies(state);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const auto text = read_file(path);
    if (!text) return warn(kNone, text.failure().message);
    const std::string_view kept = keep_known(text.value(), state);
    std::filesystem::resize_file(path, kept.size(), error);
    if (error) return warn(kNone, describe_errno("cut", path, error.value()));
  }
  auto opened = AppendFile::open(path);
  if (!opened) return warn(kNone, opened.failure().message);
  file_ = std::move(opened).value();
  begin_with(state);
  write({.what = TimelineWhat::kStart, .at = state.now, .from = state.now, .unix_seconds = begun});
}

// The whole lines of the file that tell of events the state knows: it ends before the first
// row that is later than the state, or of the same moment and tells the end of a lease that goes
// on. Also fills in what is known of the bodies.
std::string_view Timeline::keep_known(std::string_view text, const State& state) {
  text = text.substr(0, text.rfind('\n') + 1);
  size_t kept = text.size();
  int64_t unknown = std::ssize(bodies_);
  bool cutting = true;
  // From the end: rows stand in the order of their times, and the last ones alone can be later than
  // the state.
  for (size_t end = text.size(); end > 0 && (cutting || unknown > 0);) {
    if (text.size() - end > kLookBackBytes && !cutting) break;
    const size_t begin = end == 1 ? 0 : text.rfind('\n', end - 2) + 1;
    const auto row = parse_timeline_row(text.substr(begin, end - 1 - begin));
    end = begin;
    // A damaged line stays and names itself to its readers; later rows behind it are cut with it.
    if (!row) continue;
    if (row.value().at > state.now ||
        (row.value().at == state.now && is_open(row.value(), state))) {
      kept = begin;
      continue;
    }
    cutting = row.value().at == state.now;
    if (row.value().what != TimelineWhat::kGenerate || !row.value().sample) continue;
    const auto body = bodies_.find(*row.value().sample);
    if (body == bodies_.end() || body->second.tokens >= 0 || row.value().tokens < 0) continue;
    body->second.tokens = row.value().tokens;
    body->second.truncated = row.value().end == name_of(Outcome::kTruncated);
    --unknown;
  }
  return text.substr(0, kept);
}

void Timeline::remember_bodies(const State& state) {
  for (const BodyId& id : held_bodies(state)) {
    if (id.lane != Lane::kTrain || id.turns > 0) continue;
    const Task* task = find_task(state, id.lane, id.lease.member);
    Known known;
    if (task != nullptr) {
      known.min_version = task->members[static_cast<size_t>(id.lease.member.member)].min_version;
    }
    bodies_.emplace(id, known);
  }
  const Policy& policy = state.policies.at(kPolicy);
  for (const auto& [step, batch] : policy.batches) {
    if (step > policy.frontier) continue;
    for (const TaskId& id : batch.tasks) {
      const auto task = policy.tasks.find(id);
      if (task == policy.tasks.end()) continue;
      for (const BodyId& body : bodies_of(Lane::kTrain, id, task->second))
        bodies_[body].trained = step;
    }
  }
}

// A lease's begin is not in the state, its deadline is.
void Timeline::begin_with(const State& state) {
  const Deadlines& deadlines = state.config.deadlines;
  for (const auto& [work, lease] : state.leases.in_order()) {
    const bool generates = lease.kind == LeaseKind::kGenerate;
    // A lease that stored turns have renewed begins with the last of them here. Where a restart has
    // brought another lease_seconds the difference may lie outside of the run.
    const Time begin = lease.deadline - (generates ? deadlines.lease : deadlines.verify);
    leases_[work] = {lease, std::clamp(begin, Time{}, state.now)};
  }
  for (const auto& [id, worker] : state.workers) {
    workers_[id] = {worker.role, worker.connected, state.now};
    if (is_asked(worker)) {
      const Time begin = worker.install->deadline - deadlines.install;
      installs_[id] = {id, worker.install->version, std::clamp(begin, Time{}, state.now)};
    }
  }
  const Policy& policy = state.policies.at(kPolicy);
  published_ = policy.published;
  last_step_ = std::max<int64_t>(0, policy.frontier);
  if (has_work(policy)) {
    const auto batch = policy.batches.find(policy.published + 1);
    const Time begin = batch == policy.batches.end() ? state.now : batch->second.handed;
    training_ = {policy.trainer, policy.published + 1, std::min(begin, state.now)};
  }
}

// ---- events

void Timeline::observe(const Event& event, const Actions& actions, const State& after) {
  if (!file_.is_open()) return;
  compare_workers(event, actions, after);
  compare_leases(event, actions, after);
  compare_installs(event, actions, after);
  compare_trainer(event, actions, after);
  on_released(actions, after);
}

void Timeline::compare_leases(const Event& event, const Actions& actions, const State& state) {
  if (const auto* result = std::get_if<AttemptResult>(&event))
    compare_lease({result->lane, result->lease.member}, event, state);
  if (const auto* reward = std::get_if<Reward>(&event))
    compare_lease({reward->lane, reward->lease.member}, event, state);
  for (const Action& action : actions) {
    if (const auto* grant = std::get_if<Grant>(&action))
      compare_lease({grant->lane, grant->lease.member}, event, state);
    if (const auto* verify = std::get_if<Verify>(&action))
      compare_lease({verify->lane, verify->lease.member}, event, state);
    if (const auto* abort = std::get_if<Abort>(&action))
      compare_lease({abort->lane, abort->lease.member}, event, state);
  }
  // Every lease begins with an action, so that none is missing here. One that ends may have none: a
  // worker that is away hears of no abort.
  if (leases_.size() == state.leases.size()) return;
  std::set<WorkId> all;
  for (const auto& [work, lease] : leases_) all.insert(work);
  for (const auto& [work, lease] : state.leases.in_order()) all.insert(work);
  for (const WorkId& work : all) compare_lease(work, event, state);
}

void Timeline::compare_lease(const WorkId& work, const Event& event, const State& state) {
  const auto open = leases_.find(work);
  const Lease* lease = state.leases.find(work);
  const bool is_leased = lease != nullptr;
  if (open != leases_.end()) {
    if (is_leased && same_lease(open->second.lease, *lease)) return;
    end_lease(work, open->second, event, state);
    leases_.erase(open);
  }
  if (is_leased) leases_[work] = {*lease, state.now};
}

void Timeline::end_lease(const WorkId& work, const OpenLease& open, const Event& event,
                         const State& state) {
  const Lease& lease = open.lease;
  const BodyId id{work.lane, {work.member, lease.attempt}};
  TimelineRow row{
      .what = lease.kind == LeaseKind::kGenerate ? TimelineWhat::kGenerate : TimelineWhat::kVerify,
      .at = state.now,
      .from = open.begin,
      .worker = lease.worker,
      .sample = id,
      .lane = work.lane,
      .busy = state.now - open.begin,
      .verify_attempt = lease.verify_attempt,
      .prefix_turns = lease.turns};
  if (const AttemptResult* result = result_of(work, lease, event)) {
    take_result(row, *result);
  } else if (const Reward* verdict = verdict_of(work, lease, event)) {
    row.reward = verdict->reward;
    row.end = verdict->reward
                  ? "scored"
                  : name_of(verdict->task_broken ? Outcome::kTaskBroken : Outcome::kVerifierFailed);
  } else {
    row.end = why_ended(lease, event, state);
  }
  write_bounded(std::move(row));
  // Law 6.4: the attempt before was taken after all. It has its row, of when it was let go; this
  // one says what it brought, and took no time.
  const auto* result = std::get_if<AttemptResult>(&event);
  if (result == nullptr || result->lane != work.lane || !lease.before ||
      *lease.before != Lease::Before{result->worker, result->lease.attempt})
    return;
  const BodyId crossed{work.lane, result->lease};
  if (result->lease.member != work.member || !holds_body(state, crossed)) return;
  TimelineRow late{.what = TimelineWhat::kGenerate,
                   .at = state.now,
                   .from = state.now,
                   .worker = result->worker,
                   .sample = crossed,
                   .lane = work.lane};
  take_result(late, *result);
  write_bounded(std::move(late));
}

void Timeline::take_result(TimelineRow& row, const AttemptResult& result) {
  row.end = name_of(result.outcome);
  row.reward = result.reward;
  if (!has_sample(result.outcome)) return;
  row.tokens = result.tokens;
  row.min_version = result.min_version;
  row.max_version = result.max_version;
  if (result.lane == Lane::kTrain)
    bodies_[{result.lane, result.lease}] = {.tokens = result.tokens,
                                            .min_version = result.min_version,
                                            .truncated = result.outcome == Outcome::kTruncated};
}

void Timeline::compare_installs(const Event& event, const Actions& actions, const State& state) {
  // One that is asked again has not done it, whatever the event was: its time was up, perhaps.
  const auto is_asked_again = [&](const WorkerId& id) {
    return std::ranges::any_of(actions, [&](const Action& action) {
      const auto* stage = std::get_if<Stage>(&action);
      const auto* change = std::get_if<Switch>(&action);
      return (stage != nullptr && stage->worker == id) ||
             (change != nullptr && change->worker == id);
    });
  };
  // An install has no event of its own for each way to end: a session, a fork or a deadline may end
  // it. It goes on only where the state still has the same one under way.
  std::erase_if(installs_, [&](const auto& entry) {
    const auto& [id, span] = entry;
    const auto worker = state.workers.find(id);
    const bool goes_on = worker != state.workers.end() && !concerns(event, id) &&
                         !is_asked_again(id) && how_ended(event, id) == "lost" &&
                         is_asked(worker->second) && worker->second.install->version == span.number;
    if (goes_on) return false;
    end_span(TimelineWhat::kInstall, span, how_ended(event, id), state.now);
    write_parts(span, how_ended(event, id), state.now);
    return true;
  });
  // The inbox hands measurements over just before their event, and they are of no other one.
  measured_.clear();
  for (const Action& action : actions) {
    if (const auto* stage = std::get_if<Stage>(&action))
      installs_.try_emplace(stage->worker, Span{stage->worker, stage->version, state.now});
    if (const auto* change = std::get_if<Switch>(&action))
      installs_.try_emplace(change->worker, Span{change->worker, change->version, state.now});
  }
}

void Timeline::compare_workers(const Event& event, const Actions& actions, const State& state) {
  for (const Action& action : actions) {
    const auto* quarantine = std::get_if<Quarantine>(&action);
    if (quarantine == nullptr) continue;
    write_bounded({.what = TimelineWhat::kQuarantine,
                   .at = state.now,
                   .from = state.now,
                   .worker = quarantine->worker,
                   .until = std::max(quarantine->until, state.now)});
  }
  if (!moves_workers(event) && workers_.size() == state.workers.size()) return;
  const auto down = [&](const WorkerId& id, std::string_view how) {
    write_bounded({.what = TimelineWhat::kDown,
                   .at = state.now,
                   .from = state.now,
                   .worker = id,
                   .end = std::string(how)});
  };
  for (auto it = workers_.begin(); it != workers_.end();) {
    const auto worker = state.workers.find(it->first);
    const bool is_known = worker != state.workers.end();
    if (it->second.connected && (!is_known || !worker->second.connected))
      down(it->first, is_known ? "away" : "gone");
    if (is_known) it->second.connected = worker->second.connected;
    it = is_known ? std::next(it) : workers_.erase(it);
  }
  const auto* up = std::get_if<WorkerUp>(&event);
  if (up == nullptr) return;
  workers_[up->worker] = {up->role, true, state.now};
  write_bounded({.what = TimelineWhat::kUp,
                 .at = state.now,
                 .from = state.now,
                 .worker = up->worker,
                 .role = up->role,
                 .slots = std::max<int64_t>(1, up->slots),
                 .pool = up->site.pool,
                 .cluster = up->site.cluster,
                 .host = up->site.host});
}

void Timeline::compare_trainer(const Event& event, const Actions& actions, const State& state) {
  const Policy& policy = state.policies.at(kPolicy);
  for (const Action& action : actions) {
    const auto* forked = std::get_if<Forked>(&action);
    if (forked == nullptr) continue;
    // Samples that rest on the weights from there on are trained again, or thrown away.
    last_step_ = std::min(last_step_, std::max<int64_t>(0, forked->from));
    for (auto& [id, known] : bodies_) {
      if (known.trained > last_step_) known.trained = -1;
    }
  }
  const int64_t step = has_work(policy) ? policy.published + 1 : -1;
  if (training_ && training_->number != step) {
    end_span(TimelineWhat::kTrain, *training_,
             policy.published >= training_->number ? "published" : "lost", state.now);
    training_.reset();
  }
  if (!training_ && step >= 0) training_ = {policy.trainer, step, state.now};
  // decide() forgets what it asked for with the session of the trainer, so that a request may end
  // without a word.
  if (saving_) {
    const auto* durable = std::get_if<Durable>(&event);
    const bool is_saved = durable != nullptr && durable->version == saving_->number;
    if (is_saved || policy.saving != saving_->number) {
      end_span(TimelineWhat::kSave, *saving_, is_saved ? "saved" : "lost", state.now);
      saving_.reset();
    }
  }
  for (const Action& action : actions) {
    const auto* save = std::get_if<Save>(&action);
    if (save != nullptr && !saving_) saving_ = {save->worker, save->version, state.now};
  }
  if (policy.published > published_) on_published(policy, state.now);
  published_ = policy.published;
}

void Timeline::on_published(const Policy& policy, Time now) {
  if (const auto trainer = workers_.find(policy.trainer);
      published_ < 0 && policy.published == 0 && trainer != workers_.end())
    end_span(TimelineWhat::kWarmUp, {policy.trainer, -1, trainer->second.since}, "published", now);
  const int64_t step = policy.published;
  const auto batch = policy.batches.find(step);
  // A step that is trained once more in a replay (law 9.3) has its row. A fork has set last_step_
  // back, so its steps are written again.
  if (step <= last_step_ || batch == policy.batches.end()) return;
  last_step_ = step;
  TimelineRow row{.what = TimelineWhat::kStep, .at = now, .from = now, .number = step};
  std::vector<int64_t> tokens, staleness;
  for (const TaskId& id : batch->second.tasks) {
    const auto task = policy.tasks.find(id);
    if (task == policy.tasks.end()) continue;
    for (const BodyId& body : bodies_of(Lane::kTrain, id, task->second)) {
      Known& known = bodies_[body];
      known.trained = step;
      ++row.trained.samples;
      row.trained.truncated += known.truncated;
      if (known.tokens >= 0) tokens.push_back(known.tokens);
      // As in metrics.md: against the weights that the step starts from.
      staleness.push_back(known.min_version < 0 ? 0 : step - 1 - known.min_version);
    }
  }
  if (!tokens.empty()) row.trained.tokens = deciles_of(std::move(tokens));
  if (!staleness.empty()) row.trained.staleness = deciles_of(std::move(staleness));
  write_folded(now);
  row.left_out = std::exchange(left_out_, 0);
  rows_ = 0;
  write(row);
}

void Timeline::on_released(const Actions& actions, const State& state) {
  std::map<TaskId, TaskEnd> ends;
  std::map<std::string_view, TimelineRow> rows;  // by cause
  const int64_t newest = state.policies.at(kPolicy).published;
  for (const Action& action : actions) {
    if (const auto* done = std::get_if<TaskDone>(&action)) ends[done->task] = done->end;
  }
  for (const Action& action : actions) {
    const auto* release = std::get_if<Release>(&action);
    if (release == nullptr) continue;
    for (const BodyId& id : release->bodies) {
      const auto body = bodies_.find(id);
      if (id.lane != Lane::kTrain || body == bodies_.end()) continue;
      const Known known = body->second;
      bodies_.erase(body);
      // A sample that was trained is in the row of its step. It is let go when the oldest
      // checkpoint covers that.
      if (known.trained >= 0) continue;
      // A sample of a prompt that goes on was a member too many, or it is sampled again.
      const auto end = ends.find(task_of(id.lease.member));
      const std::string_view why = end == ends.end() ? "surplus" : name_of(end->second);
      TimelineRow& row = rows[why];
      row.what = TimelineWhat::kDiscarded;
      row.at = row.from = state.now;
      row.end = why;
      row.samples.push_back({.tokens = known.tokens,
                             .staleness = known.min_version < 0
                                              ? -1
                                              : std::max<int64_t>(0, newest - known.min_version),
                             .truncated = known.truncated});
    }
  }
  for (const auto& [why, row] : rows) write(row);
}

// ---- rows

// They stand one behind the other at the end of their install, as far as it was so long.
void Timeline::write_parts(const Span& install, std::string_view end, Time now) {
  const auto time_of = [&](std::string_view name) {
    for (const auto& [known, ms] : measured_) {
      // Measurements of a worker that sends nonsense are not shown.
      if (known == name && ms > 0 && ms < 1e12)
        return std::chrono::duration_cast<Time>(std::chrono::duration<double, std::milli>(ms));
    }
    return Time{};
  };
  Time until = now;
  const auto write_part = [&](TimelineWhat what, Time lasted) {
    if (lasted == Time{} || until <= install.begin) return;
    const Time from = std::max(install.begin, until - lasted);
    write_bounded({.what = what,
                   .at = now,
                   .from = from,
                   .worker = install.worker,
                   .number = install.number,
                   .until = until});
    until = from;
  };
  if (end == "staged") {
    write_part(TimelineWhat::kStage, time_of("process_ms") + time_of("stage_ms"));
    write_part(TimelineWhat::kFetch, time_of("fetch_ms"));
  } else if (end == "installed") {
    write_part(TimelineWhat::kSwitch, std::max(time_of("pause_ms"), time_of("apply_ms")));
  }
}

void Timeline::end_span(TimelineWhat what, const Span& span, std::string_view end, Time now) {
  TimelineRow row{.what = what,
                  .at = now,
                  .from = span.begin,
                  .worker = span.worker,
                  .end = std::string(end),
                  .number = span.number};
  if (what == TimelineWhat::kInstall) return write_bounded(std::move(row));
  // The trainer's are few, and without them a step of many samples would show an idle trainer.
  write(row);
}

void Timeline::write_bounded(TimelineRow row) {
  if (rows_ < rows_per_step_) {
    ++rows_;
    return write(row);
  }
  if (!is_lease(row.what)) {
    ++left_out_;
    return;
  }
  // Beyond the bound of a step its leases are summed up, a row for each worker, kind and lane, so
  // that busy time is still right.
  const auto [entry, is_new] = folded_.try_emplace({row.what, row.lane, row.worker}, row);
  if (is_new) {
    entry->second.sample.reset();
    return;
  }
  TimelineRow& sum = entry->second;
  sum.from = std::min(sum.from, row.from);
  sum.busy += row.busy;
  ++sum.leases;
}

void Timeline::write_folded(Time now) {
  for (auto& [key, row] : std::exchange(folded_, {})) {
    // Rows stand in the order of their times, or a later start could not cut them there.
    row.at = now;
    write(row);
  }
}

void Timeline::write(const TimelineRow& row) { buffer_ += format_timeline_row(row) + "\n"; }

void Timeline::flush() {
  if (buffer_.empty()) return;
  const auto written = file_.append(std::exchange(buffer_, {}));
  if (!written && failure_.empty()) warn("the timeline lacks rows", written.failure().message);
}

}  // namespace tailrace::scheduler
