#include "core/weights/verify.h"

#include <algorithm>
#include <map>
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

class Verification {
 public:
  Verification(const fs::path& folder, std::optional<int64_t> version, const fs::path& scratch,
               const std::function<void(const std::string&)>& progress)
      : folder_(folder), version_(version), scratch_(scratch), progress_(progress) {}

  VerifiedFolder run() {
    const std::vector<StoredVersion> stored = list_versions(folder_);
    for (const StoredVersion& version : stored)
      if (!version_ || *version_ == version.version) verify_if_there(version, stored);
    if (!version_) find_strays(stored);
    return std::move(found_);
  }

 private:
  // A version that its run has let go meanwhile is no damage.
  void verify_if_there(const StoredVersion& version, const std::vector<StoredVersion>& stored) {
    const size_t damages = found_.damages.size();
    verify(version, stored);
    std::error_code ignored;
    if (!fs::exists(folder_ / manifest_name(version.policy, version.version), ignored))
      found_.damages.resize(damages);
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

  void verify(const StoredVersion& version, const std::vector<StoredVersion>& stored) {
    const fs::path file = folder_ / manifest_name(version.policy, version.version);
    ++found_.versions;
    begin(file);
    const auto manifest = read_manifest(file);
    if (!manifest) return damage(file, manifest.failure().message);
    // Its own digest is over what it says; blanks say nothing.
    if (const auto text = read_file(file); !text || text.value() != to_json(manifest.value()))
      return damage(file, "it is not written as Tailrace writes it: it was edited or damaged");
    if (const Digest root = root_digest(manifest.value().tensors, manifest.value().base);
        root != manifest.value().root)
      return damage(file, fmt::format("its blocks have the root {}, and it says {}", root,
                                      manifest.value().root));
    for (const int64_t from : version.deltas) verify_delta(version, from);
    if (version.is_whole) {
      ++found_.whole;
      verify_payload(folder_ / manifest.value().payload, manifest.value());
    } else {
      verify_way(version, manifest.value(), stored);
    }
  }

  void verify_delta(const StoredVersion& version, int64_t from) {
    const fs::path file = folder_ / delta_name(version.policy, from, version.version);
    ++found_.deltas;
    begin(file);
    const auto delta = DeltaFile::open(file);
    if (!delta) return damage(file, delta.failure().message);
    if (auto proof = delta.value().prove(); !proof) damage(file, proof.failure().message);
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
  void verify_way(const StoredVersion& version, const WeightManifest& manifest,
                  const std::vector<StoredVersion>& stored) {
    const fs::path file = folder_ / manifest_name(version.policy, version.version);
    const fs::path out = scratch_ / manifest.payload;
    const auto known = std::ranges::find_if(version.deltas, [&](int64_t from) {
      return made_ && made_->policy == version.policy && made_->version == from;
    });
    std::error_code ignored;
    if (known != version.deltas.end()) {
      const fs::path base = scratch_ / payload_name(manifest_name(version.policy, *known));
      const auto done = reconstruct(
          base, folder_ / delta_name(version.policy, *known, version.version), manifest, out);
      fs::remove(base, ignored);
      made_.reset();
      if (!done) return damage(file, done.failure().message);
    } else {
      if (made_)
        fs::remove(scratch_ / payload_name(manifest_name(made_->policy, made_->version)), ignored);
      made_.reset();
      if (!way_to(stored, version.policy, version.version))
        return damage(file, "neither its payload nor a way of deltas to it is there");
      if (const auto done = payload_of(folder_, version.policy, version.version, scratch_); !done)
        return damage(file, done.failure().message);
    }
    made_ = version;
  }

  void find_strays(const std::vector<StoredVersion>& stored) {
    std::set<std::string> known;
    for (const StoredVersion& version : stored) {
      known.insert(manifest_name(version.policy, version.version));
      known.insert(payload_name(manifest_name(version.policy, version.version)));
      for (const int64_t from : version.deltas)
        known.insert(delta_name(version.policy, from, version.version));
    }
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored))
      if (!known.contains(entry.path().filename().string()))
        found_.strays.push_back(entry.path().filename().string());
    std::ranges::sort(found_.strays);
  }

  const fs::path& folder_;
  const std::optional<int64_t> version_;
  const fs::path& scratch_;
  const std::function<void(const std::string&)>& progress_;
  std::optional<StoredVersion> made_;  // lies in the scratch folder
  VerifiedFolder found_;
};

}  // namespace

VerifiedFolder verify_versions(const fs::path& folder, std::optional<int64_t> version,
                               const fs::path& scratch,
                               const std::function<void(const std::string&)>& progress) {
  return Verification(folder, version, scratch, progress).run();
}

}  // namespace tailrace
