#include "core/hosts/weight_cache.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "core/run/lock_file.h"
#include "core/weights/delta_file.h"
#include "core/weights/digest.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Versions of weights that a host keeps: what samples, what is staged, and the one before.
constexpr size_t kKeptVersions = 3;
// Others of this host, or of another run, may be about to map one that is so young.
constexpr std::chrono::seconds kJustFetched{30};
// For a version that another worker of this host brings.
constexpr std::chrono::milliseconds kLookAgain{20};
// Names of ways to one version that a relay gives: other hosts choose them.
constexpr int64_t kMostWays = 256;

// Somebody fetches a file of this version now.
bool is_being_fetched(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".lock" && !LockFile(entry.path()).held()) return true;
  return false;
}

// A manifest that has come for this root, before gigabytes are asked for. One of another root, or
// that is damaged, is removed.
Result<WeightManifest> read_of_root(const fs::path& file, const Digest& root) {
  auto manifest = read_manifest(file);
  std::error_code ignored;
  if (!manifest) {
    fs::remove(file, ignored);
    return manifest;
  }
  if (root_digest(manifest.value().tensors, manifest.value().base) == root) return manifest;
  fs::remove(file, ignored);
  return Failure{fmt::format("{}: its root is not {}", file.filename().string(), root)};
}

bool has_payload(const fs::path& folder) {
  return std::ranges::any_of(list_versions(folder), &StoredVersion::is_whole);
}

// Versions beyond those that are kept, but for `newest`. Whoever has mapped one of them keeps it.
// What has no payload takes the place of none that has: its root may be anybody's invention.
void forget_old_versions(const fs::path& versions, const fs::path& newest) {
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  std::vector<std::pair<fs::file_time_type, fs::path>> others;
  for (const auto& entry : fs::directory_iterator(versions, ignored))
    if (WeightCache::is_own_folder(entry) && entry.path() != newest)
      others.emplace_back(entry.last_write_time(ignored), entry.path());
  std::ranges::sort(others, std::greater<>());
  size_t kept = 1;
  for (const auto& [written, folder] : others) {
    if (has_payload(folder) && kept < kKeptVersions) {
      ++kept;
      continue;
    }
    if (now - written > kJustFetched && !is_being_fetched(folder)) fs::remove_all(folder, ignored);
  }
}

// A folder that was made for a root of which nothing has come.
void forget_if_empty(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() != ".lock") return;
  if (!is_being_fetched(folder)) fs::remove_all(folder, ignored);
}

// The payload of a policy's version in its folder; empty: it is not there.
fs::path payload_in(const fs::path& folder, PolicyId policy) {
  for (const StoredVersion& version : list_versions(folder))
    if (version.policy == policy && version.is_whole)
      return folder / payload_name(manifest_name(policy, version.version));
  return {};
}

// Brings one version here. Each host makes it once: whoever holds the lock of its folder does, and
// others of the host wait and find it.
class Transfer {
 public:
  Transfer(const fs::path& versions, const WeightCache::FetchFile& source,
           const WeightCache::RefuseFile& refuse, ProvedPayloads& proved, bool prove_anew,
           const WeightFetch& fetch, int64_t link_mbit, Log& log)
      : versions_(versions),
        source_(source),
        refuse_(refuse),
        proved_(proved),
        prove_anew_(prove_anew),
        fetch_(fetch),
        link_mbit_(link_mbit),
        log_(log) {}

  Result<FetchedWeights> run() {
    const fs::path folder = folder_of(fetch_.root);
    if (auto made = make_folder(folder); !made) return made.failure();
    const auto lock = wait_for(folder / "making.lock");
    if (!lock) return Failure{"another version was asked for"};
    auto manifest = fetch_manifest(fetch_.root, fetch_.manifest);
    if (!manifest) return manifest.failure();
    const WeightManifest& wanted = manifest.value();
    const fs::path payload = folder / wanted.payload;
    std::error_code ignored;
    // Another worker of this host has brought it, or it was here before; a disk may have lost it.
    const bool is_here =
        fs::exists(payload, ignored) &&
        (prove_anew_ ? proved_.prove(payload, wanted) : proved_.prove_once(payload, wanted));
    if (!is_here) fs::remove(payload, ignored);
    if (!is_here && !follow_ways(wanted) && !stopped()) {
      auto fetched = fetch_file({fetch_.root, wanted.payload});
      if (!fetched) return fetched.failure();
      sum_.full += fetched.value().received + fetched.value().kept;
    }
    if (stopped()) return Failure{"another version was asked for"};
    // The time of a version's folder says when it was used last: newest_here() and
    // forget_old_versions() go by it.
    fs::last_write_time(folder, fs::file_time_type::clock::now(), ignored);
    forget_old_versions(versions_, folder);
    log_.info(
        "fetched {} bytes={} kept_bytes={} seconds={:.2f} reconstructed_bytes={} seconds={:.2f}",
        fetch_.manifest, received_, kept_, fetch_seconds_, sum_.reconstructed, process_seconds_);
    return FetchedWeights{
        .manifest = folder / fetch_.manifest,
        .metrics = {{"fetch_ms", 1e3 * fetch_seconds_},
                    {"process_ms", 1e3 * process_seconds_},
                    {"bytes_received", static_cast<double>(received_)},
                    {"bytes_compressed", static_cast<double>(sum_.compressed)},
                    {"bytes_reconstructed", static_cast<double>(sum_.reconstructed)},
                    {"bytes_skipped", static_cast<double>(sum_.skipped)},
                    {"bytes_full", static_cast<double>(sum_.full)}}};
  }

  int64_t received() const { return received_; }               // bytes, so far
  double seconds() const { return fetch_seconds_ - waited_; }  // in which they came

 private:
  // From where a version may lead in one step; more would be a ring.
  static constexpr int kMaxSteps = 64;

  bool stopped() const { return fetch_.stop.stop_requested(); }
  fs::path folder_of(const Digest& root) const { return versions_ / root; }

  static Result<void> make_folder(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Failure{describe_errno("create", folder, error.value())};
    fs::last_write_time(folder, fs::file_time_type::clock::now(), error);
    return {};
  }

  // Nothing: nobody waits for it any more. Meanwhile another worker of this host brings the
  // version, and its progress is ours.
  std::optional<LockFile> wait_for(const fs::path& file) {
    const Time start = steady_now();
    // Bytes that lie there already may be left of a transfer that was cut: they are no progress.
    std::optional<Written> before;
    int64_t grown = 0;
    while (!stopped()) {
      LockFile lock(file);
      if (lock.held()) {
        fetch_seconds_ = waited_ = seconds_of(steady_now() - start);
        return lock;
      }
      const Written now = written_in(file.parent_path());
      if (before) {
        // Where bytes take the place of others, a file that was written is all that shows it.
        if (now.bytes > before->bytes)
          grown += now.bytes - before->bytes;
        else if (now.latest > before->latest)
          ++grown;
        fetch_.on_progress(grown, grown);
      }
      before = now;
      std::this_thread::sleep_for(kLookAgain);
    }
    return std::nullopt;
  }

  // Files of a version, but for locks, which a waiting process touches too. `bytes` are those on
  // the disk: a file that arrives has its whole length at once.
  struct Written {
    int64_t bytes = 0;
    fs::file_time_type latest = fs::file_time_type::min();
  };
  static Written written_in(const fs::path& folder) {
    Written written;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      struct stat facts {};
      if (entry.path().extension() == ".lock" || ::stat(entry.path().c_str(), &facts) != 0)
        continue;
      written.bytes += facts.st_blocks * 512;
      const auto time = entry.last_write_time(ignored);
      if (!ignored) written.latest = std::max(written.latest, time);
    }
    return written;
  }

  Result<FetchCounters> fetch_file(const WeightFile& file) {
    const Time start = steady_now();
    const int64_t before = received_ + kept_;
    auto fetched = source_(file, folder_of(file.root) / file.name, fetch_.stop,
                           [&](int64_t bytes, int64_t total) {
                             // A source that gets ready says a number of its own, which is passed
                             // on and not added to (WeightRelay).
                             if (total > 0)
                               fetch_.on_progress(before + bytes, before + total);
                             else
                               fetch_.on_progress(std::max(before, bytes), 0);
                           });
    fetch_seconds_ += seconds_of(steady_now() - start);
    if (!fetched) return fetched;
    received_ += fetched.value().received;
    kept_ += fetched.value().kept;
    return fetched;
  }

  Result<WeightManifest> fetch_manifest(const Digest& root, const std::string& name) {
    const fs::path folder = folder_of(root);
    if (auto made = make_folder(folder); !made) return made.failure();
    if (auto fetched = fetch_file({root, name}); !fetched) return fetched.failure();
    return read_of_root(folder / name, root);
  }

  // The version of this host that was used last, among the others of the policy.
  std::optional<std::pair<Digest, fs::path>> newest_here(const WeightManifest& wanted) const {
    std::optional<std::pair<Digest, fs::path>> newest;
    fs::file_time_type when{};
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(versions_, ignored)) {
      if (!WeightCache::is_own_folder(entry) || entry.path() == folder_of(wanted.root)) continue;
      const auto time = entry.last_write_time(ignored);
      if (newest && time <= when) continue;
      const fs::path payload = payload_in(entry.path(), wanted.policy);
      // A folder may hold a manifest alone, or a transfer that was cut.
      if (payload.empty()) continue;
      newest = {entry.path().filename().string(), payload};
      when = time;
    }
    return newest;
  }

  // Makes the payload from another version that is here, if it can. False: it takes the whole.
  bool follow_ways(const WeightManifest& wanted) {
    auto have = newest_here(wanted);
    if (!have) return false;
    // A relay names the next step. Whether steps lead on or in a ring is not known before, so that
    // their number is bounded.
    for (int step = 0; step < kMaxSteps && !stopped(); ++step) {
      auto next = take_step(wanted, *have);
      if (next && next.value().first == wanted.root) return true;
      if (next) {
        have = std::move(next).value();
        continue;
      }
      // Its base may be gone by now: then no way leads on from there.
      std::error_code ignored;
      if (refused_ && fs::exists(have->second, ignored) && !stopped()) continue;
      if (!stopped())
        log_.warning("{} is fetched whole: {}", fetch_.manifest, next.failure().message);
      return false;
    }
    return false;
  }

  // The version to which the next file leads from `have`, and its payload. After a Failure,
  // `refused_` says whether another source may have a better file.
  Result<std::pair<Digest, fs::path>> take_step(const WeightManifest& wanted,
                                                const std::pair<Digest, fs::path>& have) {
    const std::string way = way_name(
        {wanted.policy, wanted.version, wanted.root, have.first, std::max<int64_t>(0, link_mbit_)});
    const fs::path file = folder_of(wanted.root) / way;
    refused_ = false;
    std::error_code ignored;
    // One that is here of a transfer that was cut is not asked for again.
    if (!fs::exists(file, ignored))
      if (auto fetched = fetch_file({wanted.root, way, most_bytes(wanted)}); !fetched)
        return fetched.failure();
    auto next = follow(wanted, have, file);
    if (!next && !stopped()) {
      // It is of no use to others of this host either.
      fs::remove(file, ignored);
      refused_ = refuse_(file, next.failure().message);
    }
    return next;
  }

  // The most bytes of a file that leads to this version: a delta is written whole where it saves
  // nothing, tensor by tensor, and either form names each tensor.
  static int64_t most_bytes(const WeightManifest& wanted) {
    int64_t bytes = int64_t{1} << 20;
    for (const TensorManifest& tensor : wanted.tensors) {
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      // No published dtype is wider than float32.
      bytes += 4 * elements + 1024 + std::ssize(tensor.name);
    }
    return bytes;
  }

  Result<std::pair<Digest, fs::path>> follow(const WeightManifest& wanted,
                                             const std::pair<Digest, fs::path>& have,
                                             const fs::path& file) {
    const auto delta = DeltaFile::open(file);
    if (!delta) return take_whole(wanted, file, delta.failure());
    const DeltaEnds ends = delta.value().ends();
    if (ends.policy != wanted.policy || ends.from_root != have.first)
      return Failure{fmt::format("{}: it leads from another version", file.filename().string())};
    if (ends.to_root == wanted.root) return reconstruct_here(have.second, file, wanted);
    // A way may lead over a version in between. Its own manifest proves what the delta makes of it.
    const auto between =
        fetch_manifest(ends.to_root, manifest_name(wanted.policy, ends.to_version));
    if (!between) return between.failure();
    return reconstruct_here(have.second, file, between.value());
  }

  // Where no delta was cheaper the file is the payload itself.
  Result<std::pair<Digest, fs::path>> take_whole(const WeightManifest& wanted, const fs::path& file,
                                                 const Failure& no_delta) {
    try {
      const SafetensorsFile payload(file);
    } catch (const UserError&) {
      return no_delta;
    }
    // A relay has no digest of the run for it.
    if (auto proof = prove_payload(file, wanted); !proof) return proof.failure();
    const fs::path target = folder_of(wanted.root) / wanted.payload;
    std::error_code error;
    sum_.full += static_cast<int64_t>(fs::file_size(file, error));
    fs::remove(target, error);
    fs::create_hard_link(file, target, error);
    if (error) return Failure{describe_errno("link", target, error.value())};
    return std::pair{wanted.root, target};
  }

  Result<std::pair<Digest, fs::path>> reconstruct_here(const fs::path& base, const fs::path& delta,
                                                       const WeightManifest& to) {
    const fs::path target = folder_of(to.root) / to.payload;
    const Time start = steady_now();
    const int64_t before = received_ + kept_;
    const auto done = reconstruct(base, delta, to, target, [&](int64_t bytes) {
      fetch_.on_progress(before + bytes, before + bytes);
    });
    process_seconds_ += seconds_of(steady_now() - start);
    if (!done) {
      // A base that is damaged on this disk leads nowhere the next time either.
      std::error_code ignored;
      const auto its = read_manifest(fs::path(base).replace_extension(".json"));
      if (!its || !proved_.prove(base, its.value())) fs::remove(base, ignored);
      return done.failure();
    }
    sum_.compressed += done.value().compressed;
    sum_.full += done.value().full;
    sum_.reconstructed += done.value().reconstructed;
    sum_.skipped += done.value().skipped;
    return std::pair{to.root, target};
  }

  const fs::path& versions_;
  const WeightCache::FetchFile& source_;
  const WeightCache::RefuseFile& refuse_;
  ProvedPayloads& proved_;
  const bool prove_anew_;
  const WeightFetch& fetch_;
  const int64_t link_mbit_;
  Log& log_;
  double fetch_seconds_ = 0, process_seconds_ = 0;
  double waited_ = 0;  // of the first, for another worker of this host
  int64_t received_ = 0, kept_ = 0;
  bool refused_ = false;
  Reconstruction sum_;
};

}  // namespace

WeightCache::WeightCache(fs::path folder, FetchFile fetch_file, RefuseFile refuse_file)
    : folder_(std::move(folder)),
      fetch_file_(std::move(fetch_file)),
      refuse_file_(std::move(refuse_file)) {}

bool WeightCache::is_own_folder(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.symlink_status(error).type() == fs::file_type::directory && !error;
}

int64_t measured_mbit(int64_t bytes, double seconds) {
  // Less is over before a link has its speed.
  constexpr int64_t kEnough = int64_t{1} << 20;
  if (bytes < kEnough || seconds <= 0) return 0;
  const double mbit = std::min(static_cast<double>(bytes) * 8e-6 / seconds, 1e9);
  // A power of two: the rate is a part of a way's name, and rates that differ a little would each
  // make a file.
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max(mbit, 1.0))));
}

Result<FetchedWeights> WeightCache::transfer(const WeightFetch& fetch, bool prove_anew,
                                             std::optional<int64_t> link_mbit, Log& log) {
  try {
    Transfer transfer(folder_, fetch_file_, refuse_file_, proved_, prove_anew, fetch,
                      link_mbit.value_or(measured_mbit_), log);
    auto brought = transfer.run();
    // Also of a transfer that failed: its bytes came all the same.
    if (const int64_t mbit = measured_mbit(transfer.received(), transfer.seconds()); mbit > 0)
      measured_mbit_ = mbit;
    if (!brought) {
      MutexLock lock(mu_);
      untold_["bytes_received"] += static_cast<double>(transfer.received());
    }
    return brought;
  } catch (const UserError& error) {
    return Failure{error.what()};  // of a lock that cannot be made, as on a full disk
  }
}

Result<FetchedWeights> WeightCache::bring(const WeightFetch& fetch,
                                          std::optional<int64_t> link_mbit, Log& log) {
  // The caller has found the version damaged, perhaps: then a proof of before says nothing.
  auto brought = transfer(fetch, /*prove_anew=*/true, link_mbit, log);
  if (!brought) return brought;
  MutexLock lock(mu_);
  for (auto& [name, value] : brought.value().metrics)
    if (const auto more = untold_.find(name); more != untold_.end()) value += more->second;
  untold_.clear();
  return brought;
}

void WeightCache::tell_later(const MetricList& metrics) {
  MutexLock lock(mu_);
  for (const auto& [name, value] : metrics)
    if (name.starts_with("bytes_")) untold_[name] += value;
}

Result<void> WeightCache::bring_manifest(const WeightFetch& fetch) {
  const fs::path folder = folder_ / fetch.root;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Failure{describe_errno("create", folder, error.value())};
  fs::last_write_time(folder, fs::file_time_type::clock::now(), error);
  const auto fetched = fetch_file_({fetch.root, fetch.manifest}, folder / fetch.manifest,
                                   fetch.stop, fetch.on_progress);
  if (!fetched) return fetched.failure();
  tell_later({{"bytes_received", static_cast<double>(fetched.value().received)}});
  if (auto manifest = read_of_root(folder / fetch.manifest, fetch.root); !manifest)
    return manifest.failure();
  return {};
}

Result<void> WeightCache::bring_version(const WeightFetch& fetch, std::optional<int64_t> link_mbit,
                                        Log& log) {
  const auto brought = transfer(fetch, /*prove_anew=*/false, link_mbit, log);
  if (!brought) return brought.failure();
  tell_later(brought.value().metrics);
  return {};
}

Result<void> WeightCache::bring_file(const Digest& root, const std::string& file,
                                     const std::stop_token& stop,
                                     const std::function<void(int64_t)>& on_progress,
                                     std::optional<int64_t> link_mbit, Log& log) {
  // The name comes from another host. Only names of ways and of versions become paths here.
  const auto way = parse_way_name(file);
  const auto own = way ? std::nullopt : parse_version_file(file);
  if ((!way && (!own || own->from >= 0)) || (way && way->root != root))
    return Failure{fmt::format("{} is no file that a relay hands on", file)};
  const WeightFetch fetch{.manifest = way ? manifest_name(way->policy, way->version)
                                          : manifest_name(own->policy, own->version),
                          .root = root,
                          .stop = stop,
                          .on_progress = [&](int64_t bytes, int64_t) { on_progress(bytes); }};
  const fs::path wanted = folder_ / root / file;
  try {
    if (auto done =
            file == fetch.manifest ? bring_manifest(fetch) : bring_version(fetch, link_mbit, log);
        !done) {
      // The asker names the root, and may name any.
      forget_if_empty(folder_ / root);
      forget_old_versions(folder_, folder_ / root);
      return done;
    }
  } catch (const UserError& why) {
    return Failure{why.what()};
  }
  std::error_code error;
  if (fs::exists(wanted, error)) return {};
  // There is one file for a pair of versions, whatever links the hosts say that they have.
  fs::path source = wanted.parent_path() / payload_name(fetch.manifest);
  if (way) {
    int64_t num_ways = 0;
    std::optional<fs::path> same;
    for (const auto& entry : fs::directory_iterator(wanted.parent_path(), error)) {
      const auto other = parse_way_name(entry.path().filename().string());
      if (!other) continue;
      ++num_ways;
      // Where the payload stands for a way, the base may have come since.
      if (other->from == way->from && !fs::equivalent(entry.path(), source, error))
        same = entry.path();
    }
    // Each way is a file, and other hosts name them: without a bound they would fill the disk.
    if (num_ways >= kMostWays)
      return Failure{
          fmt::format("{} has been asked for from {} versions and links, which is the "
                      "most that a relay makes",
                      fetch.manifest, num_ways)};
    if (same)
      source = *same;
    else if (make_delta_here(*way, wanted, fetch, log))
      return {};
  }
  fs::create_hard_link(source, wanted, error);
  if (error && !fs::exists(wanted)) return Failure{describe_errno("link", wanted, error.value())};
  return {};
}

// False: none can be made from what is here, or it would save nothing.
bool WeightCache::make_delta_here(const WayRequest& way, const fs::path& file,
                                  const WeightFetch& fetch, Log& log) {
  const Time start = steady_now();
  const fs::path target = file.parent_path() / fetch.manifest,
                 base = payload_in(folder_ / way.from, way.policy);
  if (base.empty()) return false;
  const fs::path base_manifest = fs::path(base).replace_extension(".json");
  const auto its = read_manifest(base_manifest);
  // From a base that is damaged here the way would lead elsewhere from one that is not.
  if (!its || its.value().root != way.from || !proved_.prove_once(base, its.value())) return false;
  const auto made = make_delta_between(base_manifest, target, file, {}, fetch.stop,
                                       [&](int64_t bytes) { fetch.on_progress(bytes, bytes); });
  if (!made) {
    log.warning("{} goes whole to another host: {}", file.filename().string(),
                made.failure().message);
    return false;
  }
  std::error_code error;
  const auto bytes = fs::file_size(file, error),
             whole = fs::file_size(file.parent_path() / payload_name(fetch.manifest), error);
  // A delta that saves nothing would cost its making at both ends.
  if (error || bytes >= whole) {
    fs::remove(file, error);
    return false;
  }
  log.info("made {} for another host bytes={} seconds={:.2f}", file.filename().string(), bytes,
           seconds_of(steady_now() - start));
  return true;
}

}  // namespace tailrace
