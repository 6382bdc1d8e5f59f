// The versions of policies as files below RUN/weights:
//
//   p0-v12.json                   its manifest
//   p0-v12.safetensors            its payload: all of its tensors, as they sample
//   p0-v12.from-v11.delta         the way to it from another version (delta_file.h)
//
// The newest versions have their payloads. An older one that is still needed may have given it up:
// then deltas lead to it from a version that has one, an anchor. Every file appears whole or not at
// all, and every byte of it is proved before it is used.
//
// Thread: any; one writer of payloads and one that tidies a policy. Deltas are made by anybody.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/model/parameters.h"
#include "core/weights/delta_codec.h"
#include "core/weights/delta_file.h"
#include "core/weights/manifest.h"

namespace tailrace {

std::string manifest_name(PolicyId policy, int64_t version);
// "p0-v3.safetensors" of "p0-v3.json".
std::string payload_name(const std::string& manifest_name);
std::string delta_name(PolicyId policy, int64_t from, int64_t to);

// Writes the payload, then the manifest, each atomically; returns the manifest's file name.
// `manifest` must be of these parameters. A Failure gives the path and the system's reason.
Result<std::string> publish_weights(const std::filesystem::path& folder,
                                    const WeightManifest& manifest, const Parameters& parameters);

// The version that a file of such a name belongs to; nothing: none.
struct VersionFile {
  PolicyId policy = 0;
  int64_t version = 0;
  std::string rest;   // ".json", ".safetensors", ".delta"
  int64_t from = -1;  // of a delta
};
std::optional<VersionFile> parse_version_file(std::string_view name);

struct StoredVersion {
  PolicyId policy = 0;
  int64_t version = 0;
  bool is_whole = false;             // its payload is there
  std::vector<int64_t> deltas = {};  // versions from which a delta leads to it, ascending
};
// By policy and version; what has no manifest is none.
std::vector<StoredVersion> list_versions(const std::filesystem::path& folder);

// The root that a manifest says; nothing: it is not there, or damaged. Read once for each time that
// the file was written.
std::optional<Digest> root_of(const std::filesystem::path& manifest_file);

// The delta that lies at the path leads from the one version to the other: numbers alone may be of
// before a rollback.
bool is_delta_between(const std::filesystem::path& path, const Digest& from, const Digest& to);

// The delta between two versions that have their payloads: the one that lies there, if it is
// theirs, or a new one. A Failure names the file. Two may make it at once, and the later one takes
// the place of the other.
Result<std::filesystem::path> make_delta(const std::filesystem::path& folder, PolicyId policy,
                                         int64_t from, int64_t to, const DeltaCost& cost = {},
                                         const std::stop_token& stop = {});
// The same for two versions of any folders, each with its payload beside its manifest, into `path`.
Result<void> make_delta_between(
    const std::filesystem::path& from_manifest, const std::filesystem::path& to_manifest,
    const std::filesystem::path& path, const DeltaCost& cost = {}, const std::stop_token& stop = {},
    const std::function<void(int64_t)>& on_progress = [](int64_t) {});

// The work that made a payload from that of another version.
struct Reconstruction {
  int64_t compressed = 0;     // bytes of deltas
  int64_t full = 0;           // bytes of tensors that were sent whole
  int64_t reconstructed = 0;  // bytes of tensors that a delta has changed
  int64_t skipped = 0;        // bytes of tensors that are as they were
};

// Writes the payload of `target` at `out`, from the payload of another version and a delta from it.
// Every block is proved by the manifest as it is made. A Failure names the tensor; nothing is left.
// `on_progress` gets the bytes of the payload that are written.
Result<Reconstruction> reconstruct(
    const std::filesystem::path& base_payload, const std::filesystem::path& delta,
    const WeightManifest& target, const std::filesystem::path& out,
    const std::function<void(int64_t bytes)>& on_progress = [](int64_t) {});

// Whether a payload holds the tensors of the manifest: every block. A Failure names the tensor.
Result<void> prove_payload(const std::filesystem::path& payload, const WeightManifest& manifest);

// Versions on the way to this one, from one that has its payload, by the fewest deltas; nothing: no
// way leads to it. One that has its payload is its own way.
std::optional<std::vector<int64_t>> way_to(const std::vector<StoredVersion>& stored,
                                           PolicyId policy, int64_t version);

// The payload of a version, where it lies or as it was made again in `scratch`, a folder that the
// caller removes. It is not proved yet where it lies. A Failure says what is missing or damaged.
Result<std::filesystem::path> payload_of(const std::filesystem::path& folder, PolicyId policy,
                                         int64_t version, const std::filesystem::path& scratch);

// The bytes to which the delta between two versions of the folder leads are those of the second,
// and so are those of its payload, where it is there; the payload of the first is. A Failure names
// the file that is damaged.
Result<void> prove_delta(const std::filesystem::path& folder, PolicyId policy, int64_t from,
                         int64_t to);

}  // namespace tailrace
