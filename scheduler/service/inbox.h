// From messages of workers to events: what of them concerns decide(), and when a message may be
// acknowledged.
//
// A result is acknowledged when its body is in the store and its event in the journal; what its
// worker said after it waits for that, because acknowledgements count up to a message.
//
// What nobody waits for (late, said twice, never asked for, not its sender's to say) is counted and
// goes no further: it costs no body, no entry of the journal and, but at each doubling, no line.
//
// Thread: the service's only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/rate_limit.h"
#include "core/run/log.h"
#include "core/wire/server.h"
#include "scheduler/service/policy.h"
#include "scheduler/service/run_metrics.h"
#include "scheduler/service/store_actor.h"
#include "scheduler/service/timeline.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

class Inbox {
 public:
  using Feed = std::function<void(const Event&)>;

  // All are borrowed. `feed` applies an event to `state` before it returns. `judge`: the metric by
  // which groups are judged (algo.filter_metric); empty: the reward.
  Inbox(const State& state, Feed feed, StoreActor& store, wire::WorkerServer& server,
        RunMetrics& metrics, Timeline& timeline, std::string judge, Log& log);

  void take(wire::ServerEvent event);

  // The journal holds all events that were fed: says so to the workers.
  void acknowledge();

  // Something that no worker is to blame for and no retry mends; empty: nothing.
  const std::string& failure() const { return failure_; }

  // Attempts that have failed since the last one that gave a sample.
  struct Failed {
    int64_t in_row = 0;
    std::string last = {};  // why the last one did
  };
  const Failed& failed() const { return failed_; }

 private:
  // A body, or what this attempt to verify it measured: an older attempt that is at the store still
  // does not stand in a newer one's way.
  using Part = std::pair<BodyId, std::optional<int32_t>>;
  // A worker's messages that are not acknowledged yet. It outlives sessions: what comes again in
  // the next one waits for the same answer of the store.
  struct Unsettled {
    uint64_t last = 0;                  // message that arrived last
    std::map<Part, uint64_t> at_store;  // with the message that brought it
    uint64_t session = 0;               // that waits for so many reads
    int64_t num_reads = 0;
  };
  // Messages of a kind that come to nothing.
  struct Dropped {
    LogLevel level;
    std::string_view what;
    int64_t count = 0;
  };
  void drop(Dropped& kind, const wire::Incoming& from);

  void on_up(const wire::WorkerUp& up);
  void on_down(const wire::WorkerDown& down);
  void on(const wire::Incoming& from, wire::TrajectoryResult& message);  // its body is moved on
  void on(const wire::Incoming& from, const wire::Verdict& message);
  void on(const wire::Incoming& from, const wire::TrainerReady& message);
  void on(const wire::Incoming& from, const wire::Published& message);
  void on(const wire::Incoming& from, const wire::Progress& message);
  void on(const wire::Incoming& from, const wire::TrainingStage& message);
  void on(const wire::Incoming& from, const wire::Fetch& message);
  // A message that is an event; heartbeats stay inside the link, and the rest is dropped before.
  template <class Message>
  void on(const wire::Incoming& from, const Message& message);

  // Handles the rest of a message whose event is news, before that event is fed.
  void note(const wire::Incoming& from, const wire::Staged& message);
  void note(const wire::Incoming& from, const wire::Installed& message);
  void note(const wire::Incoming& from, const wire::InstallFailed& message);
  void note(const wire::Incoming& from, const wire::Durable& message);
  void note(const wire::Incoming& from, const wire::WorkerFailed& message);
  template <class Message>
  void note(const wire::Incoming&, const Message&) {}

  void on_stored(const WorkerId& worker, const TrajectoryHeader& header,
                 const StoreActor::Stored& stored);
  void on_turns(const wire::Incoming& from, const TrajectoryHeader& header,
                std::vector<std::byte> body);
  AttemptResult event_of(const WorkerId& worker, const TrajectoryHeader& header) const;
  std::optional<double> judged(Lane lane, const MetricList& metrics) const;
  void check_numerics(const wire::Hello& hello);
  bool may_tell_of_session();
  void feed_publication(PolicyId policy, const MetricList& sent, const Event& event);
  bool begin_storing(const wire::Incoming& from, const Part& part);
  void end_storing(const WorkerId& worker, const Part& part);

  const State& state_;
  Failed failed_;
  Feed feed_;
  StoreActor& store_;
  wire::WorkerServer& server_;
  RunMetrics& metrics_;
  Timeline& timeline_;
  const std::string judge_;
  Log& log_;
  std::map<WorkerId, Unsettled> unsettled_;
  std::vector<std::string> numerics_classes_;  // of workers that compute, in the order they came
  // A rollout worker that says that it trains, a trainer that scores: whatever it meant.
  Dropped stray_{LogLevel::kWarning, "that are not their sender's to send"};
  // In any run a few: an answer crosses the message that it comes too late for.
  Dropped unexpected_{LogLevel::kInfo, "that nobody waits for"};
  Dropped unreadable_{LogLevel::kWarning, "whose results cannot be read"};
  int64_t num_unheld_ = 0;   // bodies that were asked for
  int64_t num_refused_ = 0;  // turns of attempts that go on
  RateLimit session_lines_;
  std::string failure_;
};

}  // namespace tailrace::scheduler
