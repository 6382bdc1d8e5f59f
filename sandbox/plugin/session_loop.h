// The processes of one library: its host (host.h), and a process for each session. One thread ends
// them, replaces a host that died, and polls the sockets of all sessions whose calls are begun: who
// begins a call waits for nothing, and its answer comes to `done`. A call that is awaited is read
// by the thread that waits.
//
// Each call has a deadline. Who misses it is killed, with all of its process group. A process that
// ends is named with the call that it ended in.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/base/result.h"
#include "core/base/time.h"
#include "sandbox/plugin/message.h"

namespace tailrace::sandbox {

class SessionLoop {
 public:
  // On the loop's thread, or on the caller's for a session that has ended. Returns soon.
  using Done = std::function<void(Result<std::string>)>;
  using Number = uint64_t;

  // `digest`: of the file, and no other is loaded. `program`: this build's tailrace. `patience`:
  // until a host has loaded the library.
  SessionLoop(std::filesystem::path file, std::string digest, std::filesystem::path program,
              Time patience);
  ~SessionLoop();
  SessionLoop(const SessionLoop&) = delete;

  // The first host, now; what it says of its library. Without this call the first session starts
  // it.
  Result<std::string> start();

  // A session, in a process that has made nothing yet. What keeps it from having one is the failure
  // of its first call. `is_polled`: its calls are begun; else they are awaited.
  Number open(bool is_polled);
  // The answer behind its first byte. One call of a session at a time; `call`: "step()", for
  // messages, a literal.
  void begin(Number session, const Packer& request, Time timeout, const char* call, Done done);
  // The same, awaited: this thread reads the socket itself.
  Result<std::string> call(Number session, const Packer& request, Time timeout, const char* call);
  bool is_alive(Number session) const;
  // Ends it. One that is polled and idle hears `goodbye` first, for at most `timeout`.
  void release(Number session);
  void release(Number session, const Packer& goodbye, Time timeout);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // the thread's too
  std::thread thread_;
};

}  // namespace tailrace::sandbox
