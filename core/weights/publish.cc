#include "core/weights/publish.h"

#include <charconv>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"

namespace tailrace {

namespace {

namespace fs = std::filesystem;

std::string manifest_name(PolicyId policy, int64_t version) {
  return fmt::format("p{}-v{}.json", policy, version);
}

// The version of "p0-v12.json" or "p0-v12.safetensors"; -1: another file, or of another policy.
int64_t version_in(const std::string& file, PolicyId policy) {
  const std::string prefix = fmt::format("p{}-v", policy);
  if (!file.starts_with(prefix)) return -1;
  int64_t version = -1;
  const auto [end, error] =
      std::from_chars(file.data() + prefix.size(), file.data() + file.size(), version);
  const std::string_view rest(end, file.data() + file.size());
  return error == std::errc() && (rest == ".json" || rest == ".safetensors") ? version : -1;
}

// Manifests first: a manifest without its payload would be a promise that cannot be kept.
void remove_before(const fs::path& directory, PolicyId policy, int64_t first_kept) {
  std::error_code ignored;  // a file that stays costs disk, nothing else
  std::vector<fs::path> payloads;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const int64_t version = version_in(entry.path().filename().string(), policy);
    if (version < 0 || version >= first_kept) continue;
    if (entry.path().extension() == ".json") {
      fs::remove(entry.path(), ignored);
    } else {
      payloads.push_back(entry.path());
    }
  }
  for (const auto& payload : payloads) fs::remove(payload, ignored);
}

Result<void> write_payload(const fs::path& file, const WeightManifest& manifest,
                           const Parameters& parameters) {
  std::vector<NamedTensor> tensors;
  for (const ParameterInfo& info : parameters.layout().entries()) {
    tensors.push_back(
        {info.name, {Dtype::kF32, info.shape, std::as_bytes(parameters.vector(info.name))}});
  }
  try {
    // With its format named, transformers and others open a payload like any checkpoint.
    write_safetensors(file, tensors, {{"format", "pt"}, {"root", manifest.root}});
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
  return {};
}

Result<void> prove_tensor(const TensorManifest& expected, const ParameterInfo& info,
                          const TensorView& view) {
  if (expected.name != info.name || expected.shape != info.shape || view.shape != info.shape ||
      expected.dtype != "F32" || view.dtype != Dtype::kF32) {
    return Failure{
        fmt::format("tensor {}: another name, shape or dtype than the model's", info.name)};
  }
  const TensorManifest found =
      digest_tensor(info.name, "F32", info.shape, sizeof(float), view.data);
  // Before the loop, which reads both lists by one index.
  if (found.rows_per_block != expected.rows_per_block ||
      found.blocks.size() != expected.blocks.size()) {
    return Failure{fmt::format("tensor {}: {} blocks of {} rows; expected {} of {}", info.name,
                               expected.blocks.size(), expected.rows_per_block, found.blocks.size(),
                               found.rows_per_block)};
  }
  for (size_t block = 0; block < found.blocks.size(); ++block) {
    if (found.blocks[block] == expected.blocks[block]) continue;
    return Failure{fmt::format("tensor {} block {} (from row {}): digest {}; the manifest has {}",
                               info.name, block, static_cast<int64_t>(block) * found.rows_per_block,
                               found.blocks[block], expected.blocks[block])};
  }
  return {};
}

Result<void> prove_all(const WeightManifest& manifest, const SafetensorsFile& payload,
                       const ParameterLayout& layout) {
  // Equal numbers, and every tensor of the model found below: then neither has one too many.
  if (manifest.tensors.size() != layout.entries().size() ||
      payload.tensors().size() != layout.entries().size()) {
    return Failure{fmt::format("{} tensors in the manifest and {} in the payload; the model has {}",
                               manifest.tensors.size(), payload.tensors().size(),
                               layout.entries().size())};
  }
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ParameterInfo& info = layout.entries()[i];
    const auto view = payload.tensors().find(info.name);
    if (view == payload.tensors().end())
      return Failure{fmt::format("tensor {} is missing", info.name)};
    if (auto proof = prove_tensor(manifest.tensors[i], info, view->second); !proof) return proof;
  }
  return {};
}

}  // namespace

Result<std::string> publish_weights(const fs::path& directory, const WeightManifest& manifest,
                                    const Parameters& parameters, int keep) {
  // The version that is published here has to stay.
  TR_CHECK(keep >= 1);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Failure{describe_errno("create", directory, error.value())};
  // The payload first, for the same reason that it is removed last.
  if (auto written = write_payload(directory / manifest.payload, manifest, parameters); !written) {
    return written.failure();
  }
  const std::string name = manifest_name(manifest.policy, manifest.version);
  if (auto written = write_file_atomic(directory / name, to_json(manifest)); !written) {
    return written.failure();
  }
  // Only what is older: after a rollback newer versions lie here too, and are replaced as they
  // come.
  remove_before(directory, manifest.policy, manifest.version - keep + 1);
  return name;
}

Result<void> install_weights(const fs::path& manifest_file, const Digest& expected_root,
                             Parameters& parameters) {
  auto manifest = read_manifest(manifest_file);
  if (!manifest) return manifest.failure();
  const auto refuse = [&](const std::string& why) {
    return Failure{fmt::format("{}: {}", manifest_file.string(), why)};
  };
  // The root proves the block digests, these prove the bytes below; both before anything is copied.
  const Digest root = root_digest(manifest.value().tensors);
  if (root != expected_root || root != manifest.value().root) {
    return refuse(fmt::format("root {} of its blocks; it says {}, and {} is wanted", root,
                              manifest.value().root, expected_root));
  }
  try {
    const SafetensorsFile payload(manifest_file.parent_path() / manifest.value().payload);
    if (auto proof = prove_all(manifest.value(), payload, parameters.layout()); !proof) {
      return refuse(proof.failure().message);
    }
    // A plain copy, since the proof has settled that the payload is F32.
    for (const ParameterInfo& info : parameters.layout().entries()) {
      to_float(payload.tensors().find(info.name)->second, parameters.vector(info.name));
    }
  } catch (const UserError& error) {
    return refuse(error.what());
  }
  return {};
}

}  // namespace tailrace
