// The weight versions that a host of workers has, below WORK/weights/ROOT: manifest, payload, and
// what they came by. Workers of all runs share it, and each version is brought once.
//
// A version comes once, in one form: as the way to it from another one that is here
// (core/weights/way.h), or whole. Wherever a way fails, as with a base that is damaged on this
// disk, the version comes whole. What other hosts of the cluster ask this one for in another form
// is made here, from the versions that are here: each is proved once for them, and again when its
// file has changed. Whoever uses a version proves it.
//
// Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/gate/weight_sources.h"
#include "core/hosts/proved_payloads.h"
#include "core/run/log.h"
#include "core/weights/fetch_weights.h"
#include "core/weights/way.h"
#include "kernels/base/mutex.h"

namespace tailrace {

// Mbit/s, as a power of two, so that a link that is a little faster today asks for no other delta;
// 0: too little came to tell.
int64_t measured_mbit(int64_t bytes, double seconds);

class WeightCache {
 public:
  // Fetches a file of a version into `target`; in a running worker WeightSources::fetch(). It may
  // be called on any thread.
  using FetchFile = std::function<Result<FetchCounters>(
      const WeightFile& file, const std::filesystem::path& target, const std::stop_token& stop,
      const WeightSources::Progress& progress)>;
  // The file at `target` leads elsewhere. Whether another source may have a better one; in a
  // running worker WeightSources::refuse().
  using RefuseFile =
      std::function<bool(const std::filesystem::path& target, const std::string& why)>;

  WeightCache(
      std::filesystem::path folder, FetchFile fetch_file,
      RefuseFile refuse_file = [](const std::filesystem::path&, const std::string&) {
        return false;
      });

  // Makes a version available, with metrics of what that took. `link_mbit`: of the link to the
  // run, by which the run sees what is cheaper; 0: not known, so that bytes alone count; nothing:
  // as it was measured with the versions before. Hosts that take files from each other are to give
  // the same, or each would ask for a delta of its own. A Failure names the file; what has arrived
  // stays for the next call. Lines about it go to `log`.
  Result<FetchedWeights> bring(const WeightFetch& fetch, std::optional<int64_t> link_mbit,
                               Log& log);
  // One file of a version, for the relay: its manifest, its payload, or the way to it from another
  // version. For the last two the version is brought here first, as bring() does it. A way from a
  // version that is here is made; where none can be, or it saves nothing, the payload stands in its
  // place. `on_progress` gets a number that changes with progress, its own or that of the source.
  Result<void> bring_file(const Digest& root, const std::string& file, const std::stop_token& stop,
                          const std::function<void(int64_t)>& on_progress,
                          std::optional<int64_t> link_mbit, Log& log);

  const std::filesystem::path& folder() const { return folder_; }
  // A folder, and no symbolic link, which may lead anywhere.
  static bool is_own_folder(const std::filesystem::directory_entry& entry);

 private:
  Result<FetchedWeights> transfer(const WeightFetch& fetch, bool prove_anew,
                                  std::optional<int64_t> link_mbit, Log& log);
  Result<void> bring_manifest(const WeightFetch& fetch);
  Result<void> bring_version(const WeightFetch& fetch, std::optional<int64_t> link_mbit, Log& log);
  bool make_delta_here(const WayRequest& way, const std::filesystem::path& file,
                       const WeightFetch& fetch, Log& log);
  void tell_later(const MetricList& metrics);

  const std::filesystem::path folder_;
  std::atomic<int64_t> measured_mbit_ = 0;
  ProvedPayloads proved_;
  Mutex mu_;
  // Versions that were brought for others, or given up: the next bring() tells them.
  std::map<std::string, double> untold_ TR_GUARDED_BY(mu_);
  const FetchFile fetch_file_;
  const RefuseFile refuse_file_;
};

}  // namespace tailrace
