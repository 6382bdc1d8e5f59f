// The scheduler's side of all worker connections: one ROUTER socket.
//
// A message is acknowledged only when the service says so (after it is on disk), so that a
// scheduler that dies loses nothing: the worker sends it again.
//
// What peers can make it keep is bounded, whatever they send: names and sessions (admission.h),
// what was received and not yet handed out, what waits for a worker that takes nothing. A socket
// file that is taken away is put back.
//
// Thread: the service's thread only, but wake().
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/messages/message.h"
#include "core/wire/link.h"

namespace tailrace::wire {

// A new session. One of the same name that was open has ended with it, without a WorkerDown.
struct WorkerUp {
  Hello hello;
  uint64_t session = 0;
};
// The session has ended, and none took its place: silent too long, or said goodbye.
struct WorkerDown {
  std::string worker;
  uint64_t session = 0;
  std::string reason;
  bool silent = false;  // it may be there still: nothing was heard of it; else it said goodbye
};
struct Incoming {
  std::string worker;
  uint64_t sequence = 0;  // pass to acknowledge(); grows through all sessions of all workers
  Message message;
};
// A line that a person should know about the socket itself; told sparingly.
struct Notice {
  std::string text;
};
using ServerEvent = std::variant<WorkerUp, WorkerDown, Incoming, Notice>;

class WorkerServer {
 public:
  // Binds `endpoint` ("ipc://..."): the socket file must not be live. Throws UserError when it
  // cannot.
  WorkerServer(const std::string& endpoint, LinkOptions options);
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;

  // Everything that arrived, waiting up to `timeout` for the first. Malformed frames are counted
  // and dropped. Duplicates never come out. Also sends what is due (heartbeats, acknowledgements,
  // what must be sent again), so it wants to be called a few times within LinkOptions::heartbeat.
  std::vector<ServerEvent> receive(std::chrono::milliseconds timeout);
  // Ends a receive() that waits, or the next one. Thread: any.
  void wake();
  // All messages of `worker` up to `sequence` are safe.
  void acknowledge(const std::string& worker, uint64_t sequence);
  // Queued and resent until acknowledged. False: that session has ended, and the event that says so
  // has come out or is about to; what was meant for it must not reach the next one.
  [[nodiscard]] bool send(const std::string& worker, uint64_t session, const Message& message);
  // Waits until all sent messages are acknowledged or the deadline has passed (for Shutdown).
  void flush(std::chrono::milliseconds timeout);

  // How the worker of this session gets on: another number whenever a heartbeat has said another
  // one, and with each of its messages. Nothing: no heartbeat has said anything of that.
  std::optional<uint64_t> progress(const std::string& worker, uint64_t session) const;

  // The causes that hold the agents of workers up, by the latest heartbeats: "rollout-0: ...".
  std::vector<std::string> held() const;

  LinkCounters counters() const;       // of all workers and sessions together
  std::string last_malformed() const;  // why the latest frame was refused, for the log

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace::wire
