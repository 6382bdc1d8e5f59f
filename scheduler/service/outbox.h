// From actions to what they ask for: messages to workers, bodies to let go, rows for people.
//
// None is dropped: a message is queued in its worker's session, or that session is over, which
// decide() hears or has heard, and then it asks again.
//
// Thread: the service's only.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/run/log.h"
#include "core/wire/server.h"
#include "scheduler/service/run_metrics.h"
#include "scheduler/service/store_actor.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"

namespace tailrace::scheduler {

class Outbox {
 public:
  using Feed = std::function<void(const Event&)>;

  // All are borrowed.
  Outbox(const State& state, Feed feed, StoreActor& store, wire::WorkerServer& server,
         RunMetrics& metrics, const std::vector<std::string>& datasets, Log& log);

  void perform(const Action& action);

  bool run_done() const { return run_done_; }
  const std::string& failure() const { return failure_; }  // a Halt's reason; empty: none

 private:
  // A message that is all in its action; the others need something of a body first.
  template <class Message>
  void act(const To<Message>& a) {
    send(a, static_cast<const Message&>(a));
  }
  void act(const Grant& a);
  void act(const Verify& a);
  void act(const HandOver& a);
  void act(const Release& a);
  void act(const TaskDone& a);
  void act(const TaskWithdrawn& a);
  void act(const EvalDone& a);
  void act(const Forked& a);
  void act(const RunDone& a);
  void act(const Quarantine& a);
  void act(const Halt& a);
  void act(const TaskBroken& a);

  // To the session that the action names, or to nobody.
  template <class Named>
  void send(const Named& to, const wire::Message& message) {
    (void)server_.send(to.worker, to.session, message);
  }
  std::string prompt_text(const TaskId& task) const;
  void warn_of_unread(const StoreActor::Described& body) const;
  void tell_of_batch();
  void show_samples(int64_t step, int64_t version, std::vector<BodyId> ids,
                    std::map<BodyId, double> rewards, std::function<void()> then);

  const State& state_;
  Feed feed_;
  StoreActor& store_;
  wire::WorkerServer& server_;
  RunMetrics& metrics_;
  const std::vector<std::string>& datasets_;  // names; empty: there is one
  Log& log_;
  // Parts so far of the step that is being handed over.
  HandOver handed_;
  std::vector<TrajectoryHeader> handed_headers_;
  bool run_done_ = false;
  std::string failure_;
};

}  // namespace tailrace::scheduler
