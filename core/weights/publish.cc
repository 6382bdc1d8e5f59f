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

}  // namespace

std::string payload_name(const std::string& manifest_name) {
  return fs::path(manifest_name).replace_extension(".safetensors").string();
}

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

}  // namespace tailrace
