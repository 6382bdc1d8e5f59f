#include "core/weights/tidy_versions.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/weights/delta_file.h"
#include "core/weights/version_folder.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class Tidying {
 public:
  Tidying(const fs::path& folder, PolicyId policy, int64_t newest, const Retention& retention,
          const std::stop_token& stop)
      : folder_(folder), policy_(policy), newest_(newest), retention_(retention), stop_(stop) {
    TR_CHECK(retention.anchor_interval >= 1);
    for (StoredVersion& version : list_versions(folder))
      if (version.policy == policy && version.version <= newest)
        versions_.push_back(std::move(version));
  }

  Result<void> run() {
    remove_versions();
    Result<void> first;
    // From the oldest on: a payload is given up once the version before it and the delta from there
    // make it again, so the order keeps each way whole. The newest is never looked at.
    for (size_t i = 0; i + 1 < versions_.size(); ++i) {
      if (stop_.stop_requested()) return {};
      if (keeps_payload(i)) continue;
      // One that is damaged keeps no other from going.
      if (auto given_up = give_up_payload(i); !given_up && first) first = std::move(given_up);
    }
    remove_deltas();
    return first;
  }

 private:
  // Never the newest itself.
  int64_t first_kept() const { return std::min(retention_.fetched_from, newest_); }

  // From the newest anchor that is not above what is needed: the way to what is needed begins
  // there.
  void remove_versions() {
    int64_t needed = std::min(retention_.below, first_kept());
    if (retention_.evaluated >= 0) needed = std::min(needed, retention_.evaluated);
    int64_t first = -1;
    for (const StoredVersion& version : versions_)
      if (version.is_whole && version.version <= needed) first = version.version;
    // Files too that belong to no manifest: what was cut off while it was removed.
    std::error_code ignored;
    std::map<int64_t, std::vector<fs::path>> gone;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
      const auto name = parse_version_file(entry.path().filename().string());
      if (!name || name->policy != policy_ || name->version >= first) continue;
      // Manifests first: one without its payload would be a promise that cannot be kept.
      std::vector<fs::path>& files = gone[name->version];
      files.insert(name->rest == ".json" ? files.begin() : files.end(), entry.path());
    }
    // The oldest first, so that those that are there have no gap between them.
    for (const auto& [version, files] : gone)
      for (const fs::path& file : files) fs::remove(file, ignored);
    std::erase_if(versions_, [&](const StoredVersion& one) { return one.version < first; });
  }

  // The first of what is there is an anchor too.
  bool keeps_payload(size_t i) const {
    const int64_t version = versions_[i].version;
    return i == 0 || version >= first_kept() || version == retention_.evaluated ||
           version % retention_.anchor_interval == 0 || !versions_[i].is_whole;  // given up already
  }

  // A delta leads to it, and one leads on from it, before it goes.
  Result<void> give_up_payload(size_t i) {
    StoredVersion& version = versions_[i];
    if (auto way = lead_way(i - 1, i); !way || !way.value()) return nothing_or(way);
    const StoredVersion& next = versions_[i + 1];
    // An anchor keeps its payload and needs no way from here.
    const bool next_stays = next.version % retention_.anchor_interval == 0;
    if (!next_stays)
      if (auto way = lead_way(i, i + 1); !way || !way.value()) return nothing_or(way);
    std::error_code error;
    fs::remove(folder_ / payload_name(manifest_name(policy_, version.version)), error);
    // Where the file could not be removed, it is there still.
    version.is_whole = error && version.is_whole;
    return {};
  }

  static Result<void> nothing_or(const Result<bool>& way) {
    return way ? Result<void>{} : way.failure();
  }

  // A proved delta between the two is there, or is made; false: it cannot be, or nobody waits. One
  // whose base has given up its payload was applied before that, and is read again: what has become
  // of it since would be the end of the version that it leads to.
  Result<bool> lead_way(size_t before, size_t i) {
    const int64_t from = versions_[before].version, to = versions_[i].version;
    const bool is_there = has_way_from(before, i);
    if (is_there && !versions_[before].is_whole) {
      auto whole = prove_bytes(from, to);
      if (whole) return true;
      std::error_code ignored;
      fs::remove(folder_ / delta_name(policy_, from, to), ignored);
      return whole.failure();
    }
    if (is_there && prove_delta(folder_, policy_, from, to).ok()) return true;
    if (!versions_[before].is_whole || !versions_[i].is_whole) return false;
    std::error_code ignored;
    if (is_there) fs::remove(folder_ / delta_name(policy_, from, to), ignored);
    const auto delta = make_delta(folder_, policy_, from, to, {}, stop_);
    if (stop_.stop_requested()) return false;
    if (!delta) return delta.failure();
    if (auto proved = prove_delta(folder_, policy_, from, to); !proved) return proved.failure();
    std::vector<int64_t>& deltas = versions_[i].deltas;
    if (std::ranges::find(deltas, from) == deltas.end()) deltas.push_back(from);
    return true;
  }

  Result<void> prove_bytes(int64_t from, int64_t to) const {
    const auto delta = DeltaFile::open(folder_ / delta_name(policy_, from, to));
    return delta ? delta.value().prove() : delta.failure();
  }

  bool has_way_from(size_t before, size_t i) const {
    const auto from = root_of(folder_ / manifest_name(policy_, versions_[before].version));
    const auto to = root_of(folder_ / manifest_name(policy_, versions_[i].version));
    return from && to &&
           is_delta_between(
               folder_ / delta_name(policy_, versions_[before].version, versions_[i].version),
               *from, *to);
  }

  // Removes deltas that lead past versions, for somebody who had stayed behind, and those of before
  // a rollback.
  void remove_deltas() {
    std::error_code ignored;
    for (size_t i = 0; i < versions_.size(); ++i) {
      const StoredVersion& version = versions_[i];
      for (const int64_t from : version.deltas) {
        const bool from_last = i > 0 && from == versions_[i - 1].version;
        if (version.version >= first_kept() && from < newest_) continue;
        if (from_last && has_way_from(i - 1, i)) continue;
        fs::remove(folder_ / delta_name(policy_, from, version.version), ignored);
      }
    }
  }

  const fs::path& folder_;
  const PolicyId policy_;
  const int64_t newest_;
  const Retention& retention_;
  const std::stop_token& stop_;
  std::vector<StoredVersion> versions_;
};

}  // namespace

Result<void> tidy_versions(const fs::path& folder, PolicyId policy, int64_t newest,
                           const Retention& retention, const std::stop_token& stop) {
  return Tidying(folder, policy, newest, retention, stop).run();
}

}  // namespace tailrace
