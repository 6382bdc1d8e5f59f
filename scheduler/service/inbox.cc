#include "scheduler/service/inbox.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/wire/admission.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/service/lost_bodies.h"
#include "scheduler/state/expects.h"

namespace tailrace::scheduler {
namespace {

// Reasons go into the journal and the state: enough for a person, whatever a worker sends.
constexpr size_t kReasonBytes = wire::Check::kMaxTextBytes;
// Limit of one Payload, whatever was asked for: the trainer's chunks share its heartbeats' link.
constexpr int64_t kMaxPayloadBytes = int64_t{4} << 20;
// Lines that tell of sessions: two for each worker that there may be, and then one in a second.
constexpr int64_t kSessionLines = 2 * wire::kMaxWorkers;
constexpr std::chrono::seconds kSessionLinePace{1};
// More than any run has: beyond them they are made up.
constexpr int64_t kMaxNumericsClasses = 16;

// A count that is worth a line: a flood is then not one of lines.
bool doubles(int64_t count) { return std::has_single_bit(static_cast<uint64_t>(count)); }

// Measurements belong to the metrics, not to the law.
template <class Message>
From<Message> as_event(const wire::Incoming& from, const Message& message) {
  From<Message> event{{from.worker}, message};
  if constexpr (requires { event.metrics; }) event.metrics.clear();
  return event;
}

// " pool=large cluster=east host=gpu-7": where it is, as far as it says so.
std::string describe_site(const wire::Hello& hello) {
  std::string text;
  for (const auto& [key, name] : {std::pair<std::string_view, std::string_view>("pool", hello.pool),
                                  {"cluster", hello.cluster},
                                  {"host", hello.host}}) {
    if (!name.empty()) text += fmt::format(" {}={}", key, name);
  }
  return text;
}

}  // namespace

Inbox::Inbox(const State& state, Feed feed, StoreActor& store, wire::WorkerServer& server,
             RunMetrics& metrics, Timeline& timeline, std::string judge, Log& log)
    : state_(state),
      feed_(std::move(feed)),
      store_(store),
      server_(server),
      metrics_(metrics),
      timeline_(timeline),
      judge_(std::move(judge)),
      log_(log),
      session_lines_(kSessionLines, kSessionLinePace) {}

// The value by which groups are judged, from a sample's metrics. Nobody judges held-out ones.
std::optional<double> Inbox::judged(Lane lane, const MetricList& metrics) const {
  if (judge_.empty() || lane != Lane::kTrain) return std::nullopt;
  const auto found =
      std::ranges::find(metrics, judge_, [](const auto& metric) { return metric.first; });
  if (found == metrics.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

AttemptResult Inbox::event_of(const WorkerId& worker, const TrajectoryHeader& header) const {
  const bool is_sample = has_sample(header.outcome);
  return {.worker = worker,
          .lease = header.lease,
          .lane = header.lane,
          .outcome = header.outcome,
          .tokens = header.num_sampled,
          .min_version = header.min_version,
          .max_version = header.max_version,
          .reward = header.reward,
          .needs_verifier = !header.reward && !header.verifier.empty(),
          .reason = is_sample ? "" : header.evidence.substr(0, kReasonBytes),
          .judged = is_sample ? judged(header.lane, header.metrics) : std::nullopt};
}

void Inbox::take(wire::ServerEvent event) {
  if (const auto* up = std::get_if<wire::WorkerUp>(&event)) return on_up(*up);
  if (const auto* down = std::get_if<wire::WorkerDown>(&event)) return on_down(*down);
  if (const auto* notice = std::get_if<wire::Notice>(&event))
    return log_.warning("{}", notice->text);
  auto& incoming = std::get<wire::Incoming>(event);
  // Before the handler: an acknowledgement is due whatever becomes of the message.
  unsettled_[incoming.worker].last = incoming.sequence;
  const auto worker = state_.workers.find(incoming.worker);
  if (worker == state_.workers.end() || !wire::is_said_by(worker->second.role, incoming.message))
    return drop(stray_, incoming);
  std::visit([&](auto& message) { on(incoming, message); }, incoming.message);
}

void Inbox::drop(Dropped& kind, const wire::Incoming& from) {
  if (!doubles(++kind.count)) return;
  log_.write(kind.level, fmt::format("messages {}: {}, the latest from {}: {}", kind.what,
                                     kind.count, from.worker, describe(from.message)));
}

void Inbox::acknowledge() {
  for (const auto& [worker, unsettled] : unsettled_) {
    // All before the first message that waits for the store. Later ones are decided on already, and
    // come again after a kill: acceptance is idempotent (law 14.4).
    uint64_t last = unsettled.last;
    for (const auto& [part, sequence] : unsettled.at_store) last = std::min(last, sequence - 1);
    server_.acknowledge(worker, last);
  }
  // An entry with open reads stays although all is acknowledged: their number bounds what a worker
  // may ask for at once.
  std::erase_if(unsettled_, [](const auto& entry) {
    return entry.second.at_store.empty() && entry.second.num_reads == 0;
  });
}

void Inbox::on_up(const wire::WorkerUp& up) {
  const wire::Hello& hello = up.hello;
  if (may_tell_of_session()) {
    log_.info("{} {}: {} pid={} slots={} {}{}", hello.worker,
              hello.joined ? "has joined" : "is here", name_of(hello.role), hello.pid, hello.slots,
              hello.numerics_class, describe_site(hello));
    const auto known = state_.workers.find(hello.worker);
    if (known != state_.workers.end() && known->second.incarnation != hello.incarnation) {
      log_.warning(
          "{} is another process than before; what that one held ({} leases) is given again",
          hello.worker, known->second.leased);
    }
  }
  check_numerics(hello);
  feed_(WorkerUp{.worker = hello.worker,
                 .session = up.session,
                 .role = hello.role,
                 .policy = kPolicy,
                 .incarnation = hello.incarnation,
                 .slots = hello.slots,
                 .joined = hello.joined,
                 .site = {.pool = hello.pool,
                          .hardware = hello.hardware,
                          .cluster = hello.cluster,
                          .numerics_class = hello.numerics_class,
                          .host = hello.host},
                 .rank = hello.rank});
}

// Rule 3 holds inside one numerics class: between two, log-probabilities differ and are corrected
// for. Told once of each, however many sessions a flood has had told before.
void Inbox::check_numerics(const wire::Hello& hello) {
  if (hello.role == Role::kReward || hello.numerics_class.empty()) return;
  if (std::ssize(numerics_classes_) == kMaxNumericsClasses) return;
  if (std::ranges::find(numerics_classes_, hello.numerics_class) != numerics_classes_.end()) return;
  numerics_classes_.push_back(hello.numerics_class);
  if (numerics_classes_.size() == 1) return;
  log_.warning(
      "{} computes as {}, others as {}: sampled and trained log-probabilities will not be equal "
      "bit for bit",
      hello.worker, hello.numerics_class, numerics_classes_.front());
}

// Workers may come and go as they like; a log that tells of thousands tells nothing.
bool Inbox::may_tell_of_session() { return session_lines_.take(state_.now); }

// The worker's earlier messages are heard before: one that leaves hands its turns in, and they may
// be at the store still.
void Inbox::on_down(const wire::WorkerDown& down) {
  if (may_tell_of_session()) log_.warning("{} is gone: {}", down.worker, down.reason);
  const WorkerDown event{down.worker, down.session, down.silent};
  const auto unsettled = unsettled_.find(down.worker);
  if (unsettled == unsettled_.end() || unsettled->second.at_store.empty()) return feed_(event);
  store_.after([this, event] { feed_(event); });
}

void Inbox::on(const wire::Incoming& from, wire::TrajectoryResult& message) {
  // The header alone is read on this thread: tokens are decoded and proved by the store's, which
  // costs the scheduler nothing.
  auto read = wire::read_trajectory_header(message.body);
  // Which lease it meant is not known: it runs out, and counts against the worker then.
  if (!read) return drop(unreadable_, from);
  const TrajectoryHeader& header = read.value();
  if (message.goes_on) return on_turns(from, header, std::move(message.body));
  // Late: fenced.
  if (!expects_result(state_, from.worker, header.lane, header.lease))
    return drop(unexpected_, from);
  if (!has_sample(header.outcome)) {
    const AttemptResult event = event_of(from.worker, header);
    log_.info("{} failed at {}: {} {}", to_string(header.lease), from.worker,
              name_of(header.outcome), event.reason);
    if (header.outcome == Outcome::kEnvFailed) {
      ++failed_.in_row;
      failed_.last = event.reason;
    }
    return feed_(event);
  }
  const BodyId id{header.lane, header.lease};
  const Part part{id, std::nullopt};
  // Until its body is stored a result has no event, so the lease is still expected and a copy of
  // the message would be taken as well.
  if (!begin_storing(from, part)) return drop(unexpected_, from);
  store_.put(id, std::move(message.body),
             [this, worker = from.worker, part, header](const StoreActor::Stored& stored) {
               end_storing(worker, part);
               on_stored(worker, header, stored);
             });
}

// An attempt goes on, and what it has so far is kept for the one that may have to follow it.
void Inbox::on_turns(const wire::Incoming& from, const TrajectoryHeader& header,
                     std::vector<std::byte> body) {
  const TurnsStored event{.worker = from.worker,
                          .lease = header.lease,
                          .lane = header.lane,
                          .turns = header.turns,
                          .tokens = header.num_sampled,
                          .min_version = header.min_version,
                          .max_version = header.max_version};
  if (!expects(state_, event)) return drop(unexpected_, from);
  const BodyId id{header.lane, header.lease, header.turns};
  const Part part{id, std::nullopt};
  if (!begin_storing(from, part)) return drop(unexpected_, from);
  store_.put(id, std::move(body), [this, event, part](const StoreActor::Stored& stored) {
    end_storing(event.worker, part);
    if (!stored.failure.empty()) {
      if (failure_.empty()) failure_ = stored.failure;
      return;
    }
    // Its result will be refused like them, and counts.
    if (!stored.ok()) {
      if (doubles(++num_refused_))
        log_.warning("{} sent turns that are refused: {} ({} times)", event.worker, stored.refused,
                     num_refused_);
      return;
    }
    feed_(event);
    if (!holds_body(state_, part.first)) store_.release({part.first});
  });
}

// Until end_storing() nothing from this message on is acknowledged. False: a copy of it is at the
// store, and this one need not be.
bool Inbox::begin_storing(const wire::Incoming& from, const Part& part) {
  return unsettled_[from.worker].at_store.emplace(part, from.sequence).second;
}

void Inbox::end_storing(const WorkerId& worker, const Part& part) {
  unsettled_.at(worker).at_store.erase(part);
}

void Inbox::on_stored(const WorkerId& worker, const TrajectoryHeader& header,
                      const StoreActor::Stored& stored) {
  if (!stored.failure.empty()) {
    if (failure_.empty()) failure_ = stored.failure;
    return;
  }
  AttemptResult event = event_of(worker, header);
  if (!stored.refused.empty()) {
    log_.warning("{} sent a result that is refused: {}", worker, stored.refused);
    // Its header was sound and its tokens are not: a fault of the worker, and sampled again.
    event.outcome = Outcome::kLost;
    event.reason = stored.refused.substr(0, kReasonBytes);
  }
  if (has_sample(event.outcome)) failed_ = {};
  const BodyId id{header.lane, header.lease};
  feed_(event);
  // Its lease may have ended while it was being stored. A second copy of a result that was taken
  // must not take the body away.
  if (stored.ok() && !holds_body(state_, id)) store_.release({id});
}

void Inbox::on(const wire::Incoming& from, const wire::Verdict& verdict) {
  const Reward event{from.worker,
                     verdict.lease,
                     verdict.lane,
                     verdict.verify_attempt,
                     verdict.reward,
                     verdict.failure,
                     verdict.task_broken && !verdict.reward,
                     verdict.reward ? judged(verdict.lane, verdict.metrics) : std::nullopt};
  if (!expects_verdict(state_, event)) return drop(unexpected_, from);  // late: fenced
  if (!verdict.reward) {
    log_.info("{} was not scored by {}: {}", to_string(verdict.lease), from.worker,
              verdict.failure);
    return feed_(event);
  }
  const BodyId id{verdict.lane, verdict.lease};
  const Part part{id, verdict.verify_attempt};
  if (!begin_storing(from, part)) return drop(unexpected_, from);
  // As with a result: what was measured is in the store before anything counts on it.
  store_.put_verdict(id, verdict.metrics, [this, event, part](const std::string& why) {
    end_storing(event.worker, part);
    if (why.empty()) return feed_(event);
    if (failure_.empty()) failure_ = why;
  });
}

template <class Message>
void Inbox::on(const wire::Incoming& from, const Message& message) {
  if constexpr (requires { expects(state_, From<Message>{}); }) {
    const From<Message> event = as_event(from, message);
    if (!expects(state_, event)) return drop(unexpected_, from);
    note(from, message);
    feed_(event);
  }
}

void Inbox::note(const wire::Incoming&, const wire::Staged& message) {
  timeline_.measure(message.metrics);
  metrics_.on_install(message.metrics);
}

void Inbox::note(const wire::Incoming&, const wire::Installed& message) {
  timeline_.measure(message.metrics);
  metrics_.on_install(message.metrics);
}

void Inbox::note(const wire::Incoming& from, const wire::InstallFailed& message) {
  log_.warning("{} could not install version {}: {}", from.worker, message.version, message.reason);
}

void Inbox::note(const wire::Incoming&, const wire::Durable& message) {
  log_.info("checkpoint of version {}: {}", message.version, message.path);
}

void Inbox::note(const wire::Incoming& from, const wire::WorkerFailed& message) {
  log_.error("{} cannot go on: {}", from.worker, message.reason);
}

// A row of metrics is written before the event that caused it is committed: after a kill in between
// the message comes again, and the row is known.
void Inbox::feed_publication(PolicyId id, const MetricList& sent, const Event& event) {
  const auto before = state_.policies.find(id);
  if (before == state_.policies.end()) return feed_(event);
  const int64_t published = before->second.published;
  const StepStart start = before->second.step_start;
  feed_(event);
  const Policy& policy = state_.policies.at(id);
  if (policy.published > published) metrics_.on_published(policy, start, sent);
}

void Inbox::on(const wire::Incoming& from, const wire::TrainerReady& ready) {
  const RolledBack event = as_event(from, ready);
  if (!expects(state_, event)) return drop(unexpected_, from);
  const auto policy = state_.policies.find(ready.policy);
  const int64_t before = policy == state_.policies.end() ? -1 : policy->second.published;
  if (ready.version != before)
    log_.info("{} holds version {}, the run is at {}", from.worker, ready.version, before);
  // If the trainer died between its publication and our hearing of it, this greeting is the
  // publication (law 9.5).
  feed_publication(ready.policy, ready.metrics, event);
}

void Inbox::on(const wire::Incoming& from, const wire::Published& message) {
  const Published event = as_event(from, message);
  if (!expects(state_, event)) return drop(unexpected_, from);
  feed_publication(message.policy, message.metrics, event);
}

void Inbox::on(const wire::Incoming& from, const wire::TrainingStage& message) {
  const TrainingStage event = as_event(from, message);
  if (!expects(state_, event)) {
    // A trainer that comes back says where it is; from anybody else it means nothing.
    if (policy_of_trainer(state_, message.policy, from.worker) == nullptr) drop(unexpected_, from);
    return;
  }
  log_.info("{} is at stage {} of {}: {}", from.worker, message.number, message.of, message.name);
  feed_(event);
}

// A report of a training on rows, before there is a first version.
void Inbox::on(const wire::Incoming& from, const wire::Progress& message) {
  const Policy& policy = state_.policies.at(kPolicy);
  if (policy.trainer != from.worker || policy.published >= 0) return drop(unexpected_, from);
  if (!message.metrics.empty() && !metrics_.on_progress(message)) drop(unexpected_, from);
}

// Answered in the session that asked; one that is over will ask again. Of bodies that the run does
// not hold it gets nothing, and says so: that is its mistake and loses no body.
void Inbox::on(const wire::Incoming& from, const wire::Fetch& message) {
  const uint64_t session = state_.workers.at(from.worker).session;
  Unsettled& unsettled = unsettled_[from.worker];
  if (std::exchange(unsettled.session, session) != session) unsettled.num_reads = 0;
  if (unsettled.num_reads == wire::kMaxFetches) return drop(unexpected_, from);
  ++unsettled.num_reads;
  store_.read(message.bodies, message.offset, std::min(message.max_bytes, kMaxPayloadBytes),
              [this, id = from.worker, session, request = message.request](
                  std::vector<std::byte> bytes, const std::vector<StoreActor::Lost>& lost) {
                if (const auto asker = unsettled_.find(id);
                    asker != unsettled_.end() && asker->second.session == session)
                  --asker->second.num_reads;
                // Bodies may have been released while the request was on its way: only those that
                // the state still counts on are a loss (law 12.3).
                std::vector<StoreActor::Lost> missed;
                for (const StoreActor::Lost& body : lost) {
                  if (holds_body(state_, body.body)) missed.push_back(body);
                }
                // No answer when a body is lost: the batch cannot be given again (law 12.3).
                if (!missed.empty()) return lose_bodies(missed, feed_, log_);
                if (!lost.empty()) {
                  if (doubles(++num_unheld_)) {
                    log_.warning("{} asked for a body that the run does not hold: {} ({} times)",
                                 id, to_string(lost.front().body.lease), num_unheld_);
                  }
                  bytes.clear();
                }
                (void)server_.send(id, session, wire::Payload{request, std::move(bytes)});
              });
}

}  // namespace tailrace::scheduler
