// The weight versions that a host of workers has, below WORK/weights/ROOT: manifest, payload, and
// what they came by. Workers of all runs share it, and each version is brought once.
//
// A version comes as the way to it from another one that is here (core/weights/way.h), or whole.
// Wherever that fails, as with a base that is damaged on this disk, it comes whole. Whoever uses a
// version proves it.
//
// Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "core/base/digest.h"
#include "core/base/log.h"
#include "core/base/result.h"
#include "core/gate/weight_sources.h"
#include "rollout/worker/fetch_weights.h"

namespace tailrace {

// Mbit/s, as a power of two, so that a link that is a little faster today asks for no other delta;
// 0: too little came to tell.
int64_t measured_mbit(int64_t bytes, double seconds);

class WeightCache {
 public:
  // Fetches a file of the version `root` into `target`; in a running worker
  // WeightSources::fetch(). It may be called on any thread.
  using FetchFile = std::function<Result<FetchCounters>(
      const Digest& root, const std::string& file, const std::filesystem::path& target,
      const std::stop_token& stop, const WeightSources::Progress& progress)>;

  WeightCache(std::filesystem::path folder, FetchFile fetch_file);

  // Makes a version available, with metrics of what that took. `link_mbit`: of the link to the
  // run, by which the run sees what is cheaper; 0: not known, so that bytes alone count; nothing:
  // as it was measured with the versions before. Hosts that take files from each other are to give
  // the same, or each would ask for a delta of its own. A Failure names the file; what has arrived
  // stays for the next call. Lines about it go to `log`.
  Result<FetchedWeights> bring(const WeightFetch& fetch, std::optional<int64_t> link_mbit,
                               Log& log);
  // One file of a version, for the relay. `on_progress` gets a number that changes with progress.
  Result<void> bring_file(const Digest& root, const std::string& file, const std::stop_token& stop,
                          const std::function<void(int64_t)>& on_progress);

  const std::filesystem::path& folder() const { return folder_; }
  // A folder, and no symbolic link, which may lead anywhere.
  static bool is_own_folder(const std::filesystem::directory_entry& entry);

 private:
  const std::filesystem::path folder_;
  std::atomic<int64_t> measured_mbit_ = 0;
  // Bytes that were received and told to nobody yet.
  std::atomic<int64_t> relayed_ = 0, relayed_full_ = 0;
  const FetchFile fetch_file_;
};

}  // namespace tailrace
