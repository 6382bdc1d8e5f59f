#include "core/weights/verify.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "core/weights/delta_file.h"
#include "core/weights/digest.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// A file that is about to belong to something.
constexpr std::chrono::seconds kYoung{60};

class Verification {
 public:
  Verification(const fs::path& folder, std::optional<int64_t> version, const fs::path& scratch,
               const std::function<void(const std::string&)>& progress)
      : folder_(folder), version_(version), scratch_(scratch), progress_(progress) {}

  VerifiedFolder run() {
    stored_ = list_versions(folder_);
    for (const StoredVersion& version : std::vector<StoredVersion>(stored_))
      if (!version_ || *version_ == version.version) verify_settled(version);
    if (!version_) {
      find_gaps();
      find_strays();
    }
    return std::move(found_);
  }

 private:
  using Key = std::pair<PolicyId, int64_t>;

  // A run that goes on may have let the version go, or its payload, while it was looked at: then it
  // is looked at again as it lies there now.
  void verify_settled(StoredVersion version) {
    // A folder that changes under every look is not waited for: what the fifth has found stands,
    // with a word about that, for a version that was not seen at rest was not seen to be sound.
    for (int attempt = 1;; ++attempt) {
      const VerifiedFolder before = found_;
      verify(version);
      if (found_.damages.size() == before.damages.size() &&
          found_.lost.size() == before.lost.size())
        return;
      stored_ = list_versions(folder_);
      const auto now = std::ranges::find_if(stored_, [&](const StoredVersion& one) {
        return one.policy == version.policy && one.version == version.version;
      });
      const bool is_there = now != stored_.end();
      if (is_there && now->is_whole == version.is_whole && now->deltas == version.deltas) return;
      if (is_there && attempt == 5)
        return damage(folder_ / manifest_name(version.policy, version.version),
                      "its files have changed under each of five looks. Verify it again");
      found_ = before;
      damaged_.erase({version.policy, version.version});
      if (!is_there) return;
      version = *now;
    }
  }

  void damage(const fs::path& file, const std::string& what) {
    const bool names_it = what.find(file.filename().string()) != std::string::npos;
    found_.damages.push_back(names_it ? what : fmt::format("{}: {}", file.string(), what));
  }

  void begin(const fs::path& file) {
    std::error_code ignored;
    const auto bytes = fs::file_size(file, ignored);
    if (!ignored) found_.bytes += static_cast<int64_t>(bytes);
    if (progress_) progress_(file.filename().string());
  }

  void verify(const StoredVersion& version) {
    const fs::path file = folder_ / manifest_name(version.policy, version.version);
    ++found_.versions;
    begin(file);
    const auto manifest = proved_manifest(file);
    if (!manifest) return;
    for (const int64_t from : version.deltas) verify_delta(version, from, manifest->root);
    if (version.is_whole) {
      ++found_.whole;
      verify_payload(version, *manifest);
    } else {
      verify_way(version, *manifest);
    }
  }

  std::optional<WeightManifest> proved_manifest(const fs::path& file) {
    auto manifest = read_manifest(file);
    const auto refuse = [&](const std::string& why) {
      damage(file, why);
      return std::nullopt;
    };
    if (!manifest) return refuse(manifest.failure().message);
    // Its own digest is over what it says; blanks say nothing.
    if (const auto text = read_file(file); !text || text.value() != to_json(manifest.value()))
      return refuse("it is not written as Tailrace writes it: it was edited or damaged");
    const Digest root = root_digest(manifest.value().tensors, manifest.value().base);
    if (root != manifest.value().root)
      return refuse(
          fmt::format("its blocks have the root {}, and it says {}", root, manifest.value().root));
    return std::move(manifest).value();
  }

  void verify_delta(const StoredVersion& version, int64_t from, const Digest& root) {
    const fs::path file = folder_ / delta_name(version.policy, from, version.version);
    ++found_.deltas;
    begin(file);
    const size_t before = found_.damages.size();
    const auto delta = DeltaFile::open(file);
    if (!delta) {
      damage(file, delta.failure().message);
    } else if (auto proof = delta.value().prove(); !proof) {
      damage(file, proof.failure().message);
    } else {
      const DeltaEnds& ends = delta.value().ends();
      const auto base = root_of(folder_ / manifest_name(version.policy, from));
      if (ends.policy != version.policy || ends.from_version != from ||
          ends.to_version != version.version || ends.to_root != root ||
          (base && ends.from_root != *base))
        damage(file, "it leads from or to other weights than its name says");
    }
    if (found_.damages.size() > before)
      damaged_deltas_.insert({{version.policy, version.version}, from});
  }

  void verify_payload(const StoredVersion& version, const WeightManifest& manifest) {
    const size_t before = found_.damages.size();
    verify_payload(folder_ / manifest.payload, manifest);
    if (found_.damages.size() > before) damaged_.insert({version.policy, version.version});
  }

  void verify_payload(const fs::path& file, const WeightManifest& manifest) {
    begin(file);
    try {
      const SafetensorsFile payload(file);
      std::vector<SafetensorsEntry> entries;
      int64_t bytes = 0;
      for (const TensorManifest& tensor : manifest.tensors) {
        const auto found = payload.tensors().find(tensor.name);
        if (found == payload.tensors().end() || found->second.shape != tensor.shape ||
            name_of(found->second.dtype) != tensor.dtype)
          return damage(
              file, fmt::format("tensor {}: missing, or of another shape or dtype", tensor.name));
        entries.push_back({tensor.name, found->second.dtype, tensor.shape});
        bytes += entries.back().bytes();
        prove(file, tensor, found->second);
      }
      // The bytes of the header are compared too: safetensors allows blanks and orders of keys that
      // no digest of a tensor sees.
      const std::string header =
          SafetensorsWriter::header(entries, {{"format", "pt"}, {"root", manifest.root}});
      std::string there(header.size(), '\0');
      const auto opened = open_to_read(file);
      const bool is_read =
          opened && read_at(opened.value(), 0, std::as_writable_bytes(std::span(there)));
      if (!is_read || there != header ||
          fs::file_size(file) != header.size() + static_cast<size_t>(bytes))
        damage(file, "its header is not what Tailrace writes for its manifest");
    } catch (const UserError& error) {
      damage(file, error.what());
    }
  }

  void prove(const fs::path& file, const TensorManifest& tensor, const TensorView& view) {
    const TensorManifest there =
        digest_tensor(tensor.name, tensor.dtype, tensor.shape, size_of(view.dtype), view.data);
    if (there.blocks.size() != tensor.blocks.size() ||
        there.rows_per_block != tensor.rows_per_block)
      return damage(file, fmt::format("tensor {}: its manifest has other blocks", tensor.name));
    for (size_t block = 0; block < there.blocks.size(); ++block) {
      if (there.blocks[block] == tensor.blocks[block]) continue;
      damage(file,
             fmt::format("tensor {} block {} (from row {}): digest {}; the manifest has {}",
                         tensor.name, block, static_cast<int64_t>(block) * tensor.rows_per_block,
                         there.blocks[block], tensor.blocks[block]));
    }
    release_pages(view);
  }

  // From the version before it, which was made again last, or from one that has its payload.
  void verify_way(const StoredVersion& version, const WeightManifest& manifest) {
    const fs::path file = folder_ / manifest_name(version.policy, version.version);
    const auto way = way_to(stored_, version.policy, version.version);
    if (!way) return damage(file, "neither its payload nor a way of deltas to it is there");
    if (version_) verify_on_way(version, *way);
    if (const std::string culprit = damaged_on(version.policy, *way); !culprit.empty()) {
      found_.lost.push_back(
          fmt::format("{}: it cannot be made again: {} is damaged", file.string(), culprit));
      return;
    }
    const fs::path out = scratch_ / manifest.payload;
    std::error_code ignored;
    const int64_t from = (*way)[way->size() - 2];
    const bool is_next = made_ == Key{version.policy, from};
    const fs::path base = scratch_ / payload_name(manifest_name(version.policy, from));
    Result<void> done;
    if (is_next) {
      const auto made = reconstruct(
          base, folder_ / delta_name(version.policy, from, version.version), manifest, out);
      if (!made) done = made.failure();
    }
    if (made_)
      fs::remove(scratch_ / payload_name(manifest_name(made_->first, made_->second)), ignored);
    made_.reset();
    if (!is_next)
      if (const auto made = payload_of(folder_, version.policy, version.version, scratch_); !made)
        done = made.failure();
    if (done) {
      made_ = Key{version.policy, version.version};
      return;
    }
    // A full or missing scratch folder is no damage of the versions.
    if (done.failure().message.find(scratch_.string()) != std::string::npos)
      throw UserError(
          "{}.\n       Versions are made again in the folder that TMPDIR names; name another one.",
          done.failure().message);
    damage(file, done.failure().message);
  }

  // A caller that asks for one version asks for those that it is made from.
  void verify_on_way(const StoredVersion& version, const std::vector<int64_t>& way) {
    for (size_t i = 0; i < way.size() - 1; ++i) {
      const auto manifest = proved_manifest(folder_ / manifest_name(version.policy, way[i]));
      if (!manifest) {
        damaged_.insert({version.policy, way[i]});
        continue;
      }
      const StoredVersion step{.policy = version.policy, .version = way[i]};
      if (i == 0) {
        verify_payload(step, *manifest);
      } else {
        verify_delta(step, way[i - 1], manifest->root);
      }
    }
  }

  // The first damaged file on a way; empty: none.
  std::string damaged_on(PolicyId policy, const std::vector<int64_t>& way) const {
    if (damaged_.contains({policy, way.front()}))
      return payload_name(manifest_name(policy, way.front()));
    for (size_t i = 1; i < way.size(); ++i)
      if (damaged_deltas_.contains({{policy, way[i]}, way[i - 1]}))
        return delta_name(policy, way[i - 1], way[i]);
    return {};
  }

  // Each step publishes a version, and they are let go from the first on.
  void find_gaps() {
    const std::vector<StoredVersion> now = list_versions(folder_);
    for (size_t i = 1; i < now.size(); ++i)
      for (int64_t gone = now[i - 1].version + 1;
           now[i].policy == now[i - 1].policy && gone < now[i].version; ++gone)
        damage(folder_ / manifest_name(now[i].policy, gone), "it is missing");
  }

  void find_strays() {
    std::set<std::string> known;
    for (const StoredVersion& version : list_versions(folder_)) {
      known.insert(manifest_name(version.policy, version.version));
      known.insert(payload_name(manifest_name(version.policy, version.version)));
      for (const int64_t from : version.deltas)
        known.insert(delta_name(version.policy, from, version.version));
    }
    const auto now = fs::file_time_type::clock::now();
    for (const auto& entry : fs::directory_iterator(folder_)) {
      std::error_code error;
      const std::string name = entry.path().filename().string();
      const auto written = entry.last_write_time(error);
      // One that is young may be about to get its manifest.
      if (error || known.contains(name) || now - written < kYoung) continue;
      if (entry.path().extension() == ".safetensors") {
        damage(entry.path(), "its manifest is missing");
      } else {
        found_.strays.push_back(name);
      }
    }
    std::ranges::sort(found_.strays);
  }

  const fs::path& folder_;
  const std::optional<int64_t> version_;
  const fs::path& scratch_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<StoredVersion> stored_;
  std::set<Key> damaged_;                             // payloads
  std::set<std::pair<Key, int64_t>> damaged_deltas_;  // of a version, from another
  std::optional<Key> made_;                           // lies in the scratch folder
  VerifiedFolder found_;
};

}  // namespace

VerifiedFolder verify_versions(const fs::path& folder, std::optional<int64_t> version,
                               const fs::path& scratch,
                               const std::function<void(const std::string&)>& progress) {
  return Verification(folder, version, scratch, progress).run();
}

}  // namespace tailrace
