// The open port of a run: the one place where workers of other hosts come in.
//
//   worker of another host  --tcp, CURVE-->  Gate  --ipc-->  scheduler
//
// It lets in whose key is in the folder of keys (doorkeeper.h), greets them, hands out the files of
// the run in chunks (file_shelf.h), takes lines of their logs, and passes the messages of the run
// on in both directions, as they are: each worker has a connection of its own to the scheduler,
// which sees no difference to a worker of its host. So what a stranger may send never reaches the
// scheduler's process, and weights do not pass through it.
//
// A worker is its greeting: one process (incarnation) under one key has one name, and a Hello under
// another name or role is dropped. A process that was away for `forget` has to greet as a new one.
//
// Thread: run() belongs to the thread that calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/gate/file_shelf.h"
#include "core/run/log.h"
#include "core/wire/curve_keys.h"
#include "core/wire/gate_frames.h"
#include "core/wire/greeting.h"

namespace tailrace {

// A worker that was admitted: what a gate that is started again must know, so that no name that a
// living worker has is given to another one.
struct AdmittedWorker {
  std::string user;  // whose key it came by
  wire::Greeting greeting;
  wire::GreetingAnswer answer;
};

struct GateOptions {
  std::string listen;     // "tcp://HOST:PORT"
  std::string scheduler;  // its endpoint on this host
  wire::KeyFolder keys;
  std::chrono::milliseconds forget = wire::kMayBeAway;
  // After a goodbye, until the name is free: what was passed on has left by then.
  std::chrono::milliseconds parting{2'000};
  FileShelf::Find find = {};  // the files that workers may have

  // Gives a worker that is new here its name, or says why not. `user`: whose key it has.
  std::function<wire::GreetingAnswer(const wire::Greeting&, const std::string& user)> admit = {};
  // The workers whom an earlier gate of this run has admitted, and who may come back; in the order
  // in which they were admitted, which is the order in which the relays of a cluster are asked.
  std::vector<AdmittedWorker> admitted = {};
  // Called when somebody was admitted or has left, with all who are there.
  std::function<void(std::span<const AdmittedWorker>)> remember = {};
  // Whether workers of this role may have the file.
  std::function<bool(Role, const std::string& name)> may_have = {};
  // The name is free again: its worker said goodbye, or was away for too long.
  std::function<void(const std::string& name)> release = {};
  // Lines of a worker's log, for RUN/logs.
  std::function<void(const std::string& name, std::span<const wire::LogLine>)> write_lines = {};
};

struct GateCounters {
  int64_t malformed = 0;    // frames that are none of ours, or make no sense
  int64_t strayed = 0;      // frames of who has not greeted, or under a name that is not theirs
  int64_t chunks = 0;       // handed out
  int64_t not_allowed = 0;  // connections whose key is not on the list
  int64_t not_shaken = 0;   // connections that failed otherwise
};

class Gate {
 public:
  // Binds the port. Throws UserError when it cannot, or when a key is missing. Borrows the log.
  Gate(GateOptions options, Log& log);
  ~Gate();
  Gate(const Gate&) = delete;

  void run(const std::stop_token& stop);
  // One turn of run(), for tests: waits up to `timeout` for something to come.
  void turn(std::chrono::milliseconds timeout);
  const GateCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
