#include "core/weights/manifest.h"

#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/weights/digest.h"
#include "kernels/base/isa.h"

namespace tailrace {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

bool is_file_name(const std::string& name) {
  // It is joined to the folder of the manifest and must not lead out of it.
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

TensorManifest tensor_from(const json& row) {
  return {row.at("name"), row.at("dtype"), row.at("shape"), row.at("rows_per_block"),
          row.at("blocks")};
}

}  // namespace

std::string to_json(const WeightManifest& manifest) {
  json tensors = json::array();
  for (const TensorManifest& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"rows_per_block", tensor.rows_per_block},
                       {"blocks", tensor.blocks}});
  }
  const json root = {{"format", kFormat},
                     {"policy", manifest.policy},
                     {"version", manifest.version},
                     {"parent", manifest.parent},
                     {"numerics_class", manifest.numerics_class},
                     {"payload", manifest.payload},
                     {"base", manifest.base},
                     {"root", manifest.root},
                     {"tensors", tensors}};
  return json_text(root, 1) + "\n";
}

WeightManifest make_manifest(const Parameters& parameters, PolicyId policy, int64_t version,
                             const std::string& numerics_class, const Digest& base) {
  WeightManifest manifest;
  manifest.base = base;
  manifest.policy = policy;
  manifest.version = version;
  manifest.parent = version - 1;
  manifest.numerics_class = numerics_class;
  // A file a version: receivers map it, and what is mapped is never written again, only replaced or
  // removed.
  manifest.payload = fmt::format("p{}-v{}.safetensors", policy, version);
  for (const ParameterInfo& info : parameters.layout().entries()) {
    const auto values = std::as_bytes(parameters.vector(info.name));
    manifest.tensors.push_back(digest_tensor(info.name, "F32", info.shape, sizeof(float), values));
  }
  manifest.root = root_digest(manifest.tensors, base);
  return manifest;
}

Result<WeightManifest> read_manifest(const std::filesystem::path& file) {
  auto text = read_file(file, kMaxManifestBytes);
  if (!text) return text.failure();
  try {
    const json root = parse_json(text.value());
    if (root.is_discarded())
      return Failure{fmt::format("{}: not a weight manifest: not valid JSON", file.string())};
    // Before anything else is read: other formats may lack or rename it.
    if (root.at("format") != kFormat) {
      return Failure{fmt::format("{}: format {}; this build reads {}", file.string(),
                                 json_text(root.at("format")), kFormat)};
    }
    WeightManifest manifest;
    manifest.policy = root.at("policy");
    manifest.version = root.at("version");
    manifest.parent = root.at("parent");
    manifest.numerics_class = root.at("numerics_class");
    manifest.payload = root.at("payload");
    manifest.base = root.value("base", Digest());
    manifest.root = root.at("root");
    for (const json& tensor : root.at("tensors")) manifest.tensors.push_back(tensor_from(tensor));
    if (!is_file_name(manifest.payload)) {
      return Failure{
          fmt::format("{}: payload '{}' is not a file name", file.string(), manifest.payload)};
    }
    return manifest;
  } catch (const json::exception& error) {
    return Failure{fmt::format("{}: not a weight manifest: {}", file.string(), error.what())};
  }
}

// The first two conditions are those of kernels/cpu/simd.h, which decide what is computed with.
std::string hardware(const Device& device) {
  TR_CHECK(device.kind == DeviceKind::kCpu, "this build has no ops for a GPU");
  return "cpu";
}

std::string numerics_class(Dtype weights, const Device& device) {
  return fmt::format("{}-{}-w{}-a32-kv32-k1-exact", hardware(device), name_of(isa()),
                     weights == Dtype::kBF16 ? "bf16" : "32");
}

}  // namespace tailrace
