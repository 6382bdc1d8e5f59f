// Hands the weights of a run on to other hosts of a cluster, so that they cross its boundary once.
// What it is asked for and does not have yet it fetches or makes, and it says meanwhile how far it
// has got.
//
// Only one worker of a host relays at an address. The others that were told to wait, and one of
// them takes its place when it ends.
//
// Thread: owns two, one for the port and one that fetches. The functions of the options are called
// on either, and on that of the Doorkeeper.
// Close: the destructor stops a fetch that is under way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "core/gate/file_shelf.h"
#include "core/run/lock_file.h"
#include "core/run/log.h"
#include "core/wire/endpoint.h"
#include "core/wire/wakeup.h"
#include "kernels/base/mutex.h"

namespace tailrace {

struct WeightRelayOptions {
  std::string listen;             // "tcp://10.1.0.7:7702": it is bound
  wire::KeyPair own;              // by which others know it
  std::filesystem::path weights;  // a version's files are in weights/ROOT
  std::filesystem::path lock;     // held by whoever relays at this address
  std::function<bool(std::string_view public_key)> is_guest = {};  // who may have weights
  // Brings a file to weights/ROOT/FILE, by fetching its version in one form whatever the file is.
  // `on_progress` gets a number that changes whenever it gets on.
  std::function<Result<void>(const Digest& root, const std::string& file,
                             const std::stop_token& stop,
                             const std::function<void(int64_t)>& on_progress)>
      fetch = {};
};

class WeightRelay {
 public:
  // Throws UserError when the address cannot be bound, but not when another worker of this host
  // relays there. Borrows the log.
  WeightRelay(WeightRelayOptions options, Log& log);
  ~WeightRelay();
  WeightRelay(const WeightRelay&) = delete;

 private:
  struct Port;
  struct Wanted {
    Digest root;
    std::string file;
  };
  static std::optional<Wanted> parse(const std::string& name);
  bool open();
  void serve(const std::stop_token& stop);
  void fetch_wanted(const std::stop_token& stop);
  SharedFile find(const std::string& name);

  const WeightRelayOptions options_;
  Log& log_;
  wire::Wakeup bell_;
  std::optional<LockFile> lock_;
  std::unique_ptr<Port> port_;  // null: another worker of this host has it

  Mutex mu_;
  std::condition_variable_any changed_;
  std::deque<std::string> wanted_ TR_GUARDED_BY(mu_);  // the first one is being fetched
  struct Refusal {
    std::string why;
    Time until;
  };
  std::map<std::string, Refusal> refused_ TR_GUARDED_BY(mu_);  // fetches that have failed
  // The progress of the fetch that is under way, as its source gives it: passed on and never added
  // to, so that two relays that wait for each other see no progress.
  std::atomic<int64_t> progress_ = 0;
  std::jthread fetcher_, server_;  // last: use what is above
};

}  // namespace tailrace
