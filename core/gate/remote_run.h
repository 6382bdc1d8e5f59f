// A run of another host, as a worker sees it: what it is called there, its files, and where its
// warnings go. The messages of the run are those of any worker (WorkerClient).
//
// Thread: owns one, which keeps the greeting alive and hands in lines; all calls any thread.
// Close: the destructor waits up to a second for lines that were not handed in, and says that the
// process leaves.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/result.h"
#include "core/gate/file_fetch.h"
#include "core/run/log.h"
#include "core/wire/endpoint.h"
#include "core/wire/gate_frames.h"
#include "core/wire/greeting.h"

namespace tailrace {

struct RemoteRunOptions {
  wire::Endpoint gate;
  wire::Greeting greeting;  // without build, version and incarnation, which are this process's
  // For a gate that answers at all, and for one that says "later".
  std::chrono::milliseconds patience{10'000};
  // The gate refuses the key of this process, which it knew before. Called once until it is back,
  // on the thread of the RemoteRun, which goes on trying.
  std::function<void(const std::string& why)> on_shut_out = {};
  double rate_mbit = 0;  // of files, all that are fetched at once each; 0: as the link allows
  // How often it greets, so that a gate that has begun anew knows it soon.
  std::chrono::milliseconds greet_again{1'000};
};

// Nobody listens at the address, or not yet, or it is about to end: it may be tried again.
class Unreachable : public UserError {
 public:
  using UserError::UserError;
};

class RemoteRun {
 public:
  // Greets. Throws Unreachable, and otherwise UserError, in one line each: the gate does not know
  // this key, or has another one; it is no gate; it is another build; or why the run refuses the
  // worker.
  explicit RemoteRun(RemoteRunOptions options);
  ~RemoteRun();
  RemoteRun(const RemoteRun&) = delete;

  const wire::GreetingAnswer& welcome() const;
  uint64_t incarnation() const;
  const wire::Endpoint& endpoint() const;
  const wire::Greeting& greeting() const;

  // fetch_file() of this run; incarnation and rate are its own.
  Result<FetchCounters> fetch(const std::string& name, const std::filesystem::path& target,
                              const std::stop_token& stop, FetchOptions options = {});

  // The run's facts of a file. Its digest proves what others have under that name.
  Result<wire::FileFacts> facts(const std::string& name, const std::stop_token& stop);

  // The relays of weights in the cluster of this worker, as last heard; waits a moment for the
  // first list. Empty where the worker is in no cluster, or does not sample.
  wire::RelayList relays(const std::stop_token& stop) const;
  // Whether it is in the list of those who may have weights of a relay of this cluster.
  bool is_guest(std::string_view public_key) const;

  // A line for the log of the run. Of more than a few hundred that cannot be handed in, the oldest
  // go, and are counted.
  void tell(LogLevel level, std::string_view line);

  // This process has greeted anew and was refused: its name is another's, or the run is another
  // build by now. Empty: all is well.
  std::string refusal() const;

 private:
  template <class Act>
  auto over_connection(const Act& act) -> decltype(act(std::declval<FetchConnection&>()));

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
