// Where a worker of another host takes the files of weight versions from: the relays of its cluster
// in the order of their admission, and last the run. A host that relays itself asks only those
// before it, so that no two relays wait for each other.
//
// The run says what a manifest or a payload is (its digest), and a relay gives the bytes, which are
// proved by that digest. The way to a version from another one is made by the relay itself, from
// what it has, so that a version crosses the boundary of a cluster once, in one form; the receiver
// proves what it leads to by the manifest, and refuses a relay whose way leads elsewhere
// (refuse()). So a relay costs the run no trust. A relay that makes no progress for some seconds,
// is dead, or has another file is left for the next source, which goes on with the chunks that are
// there. It is asked first again after a pause that doubles.
//
// Thread: fetch() any; log_to() before the first fetch().
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "core/gate/file_fetch.h"
#include "core/gate/remote_run.h"
#include "core/run/log.h"
#include "core/wire/gate_frames.h"
#include "kernels/base/mutex.h"

namespace tailrace {

// A file of the version `root`.
struct WeightFile {
  Digest root;
  std::string name;
  // The size limit where each source may have a file of its own, which the receiver proves by what
  // it leads to. -1: all sources have the same file, and the run says its digest.
  int64_t max_bytes = -1;
};

struct WeightSourcesOptions {
  // Whether the relay of this address hands out what this host itself fetches.
  std::function<bool(const std::string& address)> is_here = [](const std::string&) {
    return false;
  };
  std::chrono::milliseconds patience{4'000};  // without progress of a relay
  // After which a relay that was left is asked first again; it doubles up to the longest.
  std::chrono::milliseconds pause{10'000}, longest_pause{160'000};
};

class WeightSources {
 public:
  // Name of the run among the sources.
  static constexpr char kRun[] = "run";

  // Borrows the run.
  explicit WeightSources(RemoteRun& run, WeightSourcesOptions options = {});

  // Gets a line for each file and source (bytes, time), and for each relay that was left.
  void log_to(Log& log) { log_ = &log; }

  // Fetches `file` into `target` from the best source. A Failure names each source and why it did
  // not give it.
  using Progress = std::function<void(int64_t bytes, int64_t total)>;
  Result<FetchCounters> fetch(
      const WeightFile& file, const std::filesystem::path& target, const std::stop_token& stop,
      const Progress& progress = [](int64_t, int64_t) {});
  // The file at `target` leads elsewhere: its relay is left for a while. False: it came from the
  // run, and nobody else has a better one.
  bool refuse(const std::filesystem::path& target, const std::string& why);

  // Bytes of chunks since the beginning: of the run, and of relays by their names.
  std::map<std::string, int64_t> received() const;

 private:
  struct Left {
    Time until{};
    std::chrono::milliseconds pause{};
  };
  std::vector<wire::RelayAddress> relays_to_ask(const std::stop_token& stop);
  void note_received(const std::string& source, const std::string& file, int64_t bytes, Time time);
  void leave(const wire::RelayAddress& relay, const std::string& file, const std::string& why);
  void note_good(const wire::RelayAddress& relay);
  void note_unproved(const std::filesystem::path& target, const wire::RelayAddress& relay);

  RemoteRun& run_;
  const WeightSourcesOptions options_;
  Log* log_ = nullptr;
  mutable Mutex mu_;
  std::map<std::string, Left> left_ TR_GUARDED_BY(mu_);  // by address
  std::map<std::string, int64_t> received_ TR_GUARDED_BY(mu_);
  // Whose the latest files are that no digest of the run has proved; the oldest are forgotten.
  struct Unproved {
    std::filesystem::path target;
    wire::RelayAddress relay;
  };
  std::deque<Unproved> unproved_ TR_GUARDED_BY(mu_);
};

// The name that a relay gives the file of a version.
std::string name_at_relay(const Digest& root, const std::string& file);

}  // namespace tailrace
