// A worker's connection to the scheduler.
//
//   WorkerClient client(hello, endpoint, options);
//   while (auto event = client.receive(100ms)) ...        // messages in order
//   client.send(TrajectoryResult{...});                   // queued, delivered at least once
//
// An I/O thread owns the ZeroMQ socket (DEALER), sends heartbeats while the worker computes,
// resends what has not been acknowledged, and says Hello again when the scheduler was restarted.
// Then, and when the scheduler had given the worker up, receive() returns a new Welcome and a Hold
// that says which work still counts; messages that were sent and not acknowledged are sent again by
// the client itself.
//
// It ends up with Shutdown when another process has taken its name.
//
// Thread: send() any; receive() one thread.
// Close: the destructor waits up to options.linger for unacknowledged messages, says goodbye if all
// have arrived and no exception is the reason (that is a crash, not a leave), then joins.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/messages/message.h"
#include "core/wire/endpoint.h"
#include "core/wire/link.h"

namespace tailrace::wire {

class WorkerClient {
 public:
  // `says`: what heartbeats say; called on the I/O thread.
  WorkerClient(Hello hello, const Endpoint& endpoint, LinkOptions options,
               std::function<Heartbeat()> says = {});
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;

  // The queue is bounded by the leases that a worker holds, so it never waits. Returns how many
  // messages were sent, this one included; each piece of a large one (pieces.h) counts.
  int64_t send(const Message& message);
  // The number of messages that, in their order, were safe with the scheduler when the message came
  // that receive() returned last (or when it found none). After a Welcome: the others are sent
  // again in the new session. Thread: the one that receives.
  int64_t num_acknowledged() const;
  // The next message, or nothing after `timeout`.
  std::optional<Message> receive(std::chrono::milliseconds timeout);
  // How long the scheduler has been silent; the worker ends itself when that exceeds its patience.
  std::chrono::milliseconds silence() const;
  // Another process has taken this worker's name: the Shutdown that came was not the run's end.
  bool displaced() const;
  LinkCounters counters() const;  // of all sessions together

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
