// The files of a worker of another host about its run, on its own disk:
//
//   WORK/files/DIGEST         files of bundles, for all workers and runs of this host
//   WORK/weights/ROOT/        versions of weights, for all workers of this host
//   WORK/relays/DIGEST        held by the worker that relays weights at the address of that digest
//   WORK/workers/NAME-X/      looks like the run's directory (RunPaths) to the worker
//   WORK/logs/RUN-NAME.log
//
// All of it can be deleted while no worker runs; what is there is proved before it is used.
//
// Thread: one makes it; weights() any.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/gate/remote_run.h"
#include "core/gate/weight_relay.h"
#include "core/gate/weight_sources.h"
#include "core/hosts/weight_cache.h"
#include "core/run/lock_file.h"
#include "core/run/run_directory.h"

namespace tailrace {

// Where WORK is when nobody says: below XDG_CACHE_HOME or ~/.cache.
std::filesystem::path default_work_directory();

class RunMirror {
 public:
  // Pulls the bundle of this role. `say` gets a line for what takes time. Throws UserError: a file
  // that cannot be had or written. Borrows the run.
  RunMirror(RemoteRun& run, Role role, const std::filesystem::path& work,
            const std::stop_token& stop, const std::function<void(const std::string&)>& say);
  ~RunMirror();  // removes its own folder; files and weights stay
  RunMirror(const RunMirror&) = delete;

  const RunPaths& paths() const { return paths_; }
  // The keys of the config that name files, as overrides that name those of this host.
  const std::vector<std::string>& overrides() const { return overrides_; }
  // The log of this worker; it outlives the folder.
  std::filesystem::path log_file() const;

  WeightCache& weights() { return weights_; }
  // Where its weights come from.
  WeightSources& sources() { return sources_; }
  // Options of this worker as a relay at `address`, which is this host's. `link_mbit` and `log`: as
  // for WeightCache::bring(), so that its workers and other hosts ask for one form of a version.
  // Borrows the mirror and the log.
  WeightRelayOptions relay_options(const std::string& address, std::optional<int64_t> link_mbit,
                                   Log& log);

 private:
  RemoteRun& run_;
  const std::filesystem::path work_;
  WeightSources sources_;
  WeightCache weights_;
  RunPaths paths_;
  LockFile lock_;
  std::vector<std::string> overrides_;
};

}  // namespace tailrace
