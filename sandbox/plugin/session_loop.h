// The processes of one library: its host (host.h), and a process for each session. One thread ends
// them, replaces a host that died, and talks to all sessions whose calls are begun: the thread that
// begins a call waits for nothing, and its answer comes to `done`. A call that is awaited is read
// by the thread that waits.
//
// Each call has a deadline. A process that misses it is killed, with all of its process group. A
// process that ends is named with the call that it ended in.
//
// Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"
#include "sandbox/plugin/message.h"
#include "sandbox/process/program_loop.h"

namespace tailrace::sandbox {

class SessionLoop;

// A session, in a process that has made nothing yet. What keeps it from having one is the failure
// of its first call. One call at a time; `call`: "step()", for messages, a literal.
class HostedSession {
 public:
  // On the loop's thread. Returns soon.
  using Done = std::function<void(Result<std::string>)>;

  // How it is called: each call is awaited, or begun and answered from another thread.
  enum class Calls : uint8_t { kAwaited, kBegun };

  HostedSession(std::shared_ptr<SessionLoop> loop, Calls calls);
  HostedSession(const HostedSession&) = delete;
  ~HostedSession();

  // The answer behind its first byte.
  void begin(const Packer& request, Time timeout, const char* call, Done done);
  // The same, awaited: this thread reads the socket itself.
  Result<std::string> call(const Packer& request, Time timeout, const char* call);
  bool is_alive() const;
  // Ends it, and waits for nothing. Where it is idle it hears `goodbye` first, for at most
  // `timeout`. A call in flight fails, and so does one that is begun behind it.
  void close(const Packer& goodbye, Time timeout);

 private:
  friend class SessionLoop;
  struct Peer;

  const std::shared_ptr<SessionLoop> loop_;
  const std::shared_ptr<Peer> peer_;
  std::atomic<bool> released_ = false;
};

class SessionLoop {
 public:
  // `digest`: of the file, and no other is loaded. `program`: this build's tailrace. `patience`:
  // until a host has loaded the library.
  SessionLoop(std::filesystem::path file, std::string digest, std::filesystem::path program,
              Time patience);
  ~SessionLoop();  // no session is left but those that say goodbye
  SessionLoop(const SessionLoop&) = delete;

  // The first host, now; what it says of its library. Without this call the first session starts
  // it.
  Result<std::string> start();

 private:
  friend class HostedSession;
  struct State;

  const std::shared_ptr<State> state_;  // the thread's too
  const ProgramThread thread_;
};

}  // namespace tailrace::sandbox
