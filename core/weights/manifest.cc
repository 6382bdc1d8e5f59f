#include "core/weights/manifest.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/weights/digest.h"
#include "kernels/base/backend.h"
#include "kernels/base/check.h"
#include "kernels/base/isa.h"

namespace tailrace {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 2;
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

bool is_file_name(const std::string& name) {
  // It is joined to the folder of the manifest and must not lead out of it.
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

TensorManifest tensor_from(const json& row) {
  TensorManifest tensor;
  row.at("name").get_to(tensor.name);
  row.at("dtype").get_to(tensor.dtype);
  row.at("shape").get_to(tensor.shape);
  row.at("rows_per_block").get_to(tensor.rows_per_block);
  row.at("blocks").get_to(tensor.blocks);
  return tensor;
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
  json sets = json::array();
  for (const TensorSet& set : tensor_sets(manifest.tensors))
    sets.push_back({{"name", set.name}, {"tensors", set.num_tensors}, {"root", set.root}});
  const json root = {{"format", kFormat},
                     {"policy", manifest.policy},
                     {"version", manifest.version},
                     {"parent", manifest.parent},
                     {"attempt", manifest.attempt},
                     {"numerics_class", manifest.numerics_class},
                     {"payload", manifest.payload},
                     {"base", manifest.base},
                     {"master", manifest.master},
                     {"root", manifest.root},
                     {"sets", sets},
                     {"tensors", tensors}};
  return to_proved_json(root);
}

// By the names of Hugging Face and peft.
std::string_view set_of(std::string_view tensor) {
  if (tensor.find(".lora_") != std::string_view::npos) return "adapter";
  // Sets are what a version changes as a whole or not at all: an equal root spares the comparison.
  return tensor.find(".mlp.experts.") != std::string_view::npos ? "experts" : "model";
}

std::vector<TensorSet> tensor_sets(std::span<const TensorManifest> tensors) {
  std::map<std::string, std::vector<TensorManifest>, std::less<>> members;
  for (const TensorManifest& tensor : tensors)
    members[std::string(set_of(tensor.name))].push_back(tensor);
  std::vector<TensorSet> sets;
  for (const auto& [name, its] : members) sets.push_back({name, std::ssize(its), root_digest(its)});
  return sets;
}

Dtype published_dtype(ParameterKind kind, Dtype compute) {
  switch (kind) {
    case ParameterKind::kEmbedding:
    case ParameterKind::kMatrix:
    case ParameterKind::kResidual:
      return compute;
    // Norms, biases and adapters are few and read in float32, in which they are published too.
    case ParameterKind::kNorm:
    case ParameterKind::kBias:
    case ParameterKind::kChoice:
    case ParameterKind::kLowRankIn:
    case ParameterKind::kLowRankOut:
      return Dtype::kF32;
  }
  TR_CHECK(false, "no kind");
}

int64_t published_bytes(const ParameterLayout& layout, Dtype compute) {
  int64_t bytes = 0;
  for (const ParameterInfo& info : layout.entries())
    bytes += info.size * static_cast<int64_t>(size_of(published_dtype(info.kind, compute)));
  return bytes;
}

WeightManifest make_manifest(const Parameters& parameters, PolicyId policy, int64_t version,
                             const std::string& numerics_class, const Digest& base, Dtype compute) {
  WeightManifest manifest;
  manifest.base = base;
  manifest.policy = policy;
  manifest.version = version;
  manifest.numerics_class = numerics_class;
  // A file a version: receivers map it, and what is mapped is never written again, only replaced or
  // removed.
  manifest.payload = fmt::format("p{}-v{}.safetensors", policy, version);
  std::vector<TensorManifest> masters;
  bool all_are_masters = true;
  for (const ParameterInfo& info : parameters.layout().entries()) {
    const std::span<const float> values = parameters.vector(info.name);
    TensorManifest master =
        digest_tensor(info.name, "F32", info.shape, sizeof(float), std::as_bytes(values));
    if (published_dtype(info.kind, compute) == Dtype::kBF16) {
      all_are_masters = false;
      manifest.tensors.push_back(digest_rounded(info.name, info.shape, values));
    } else {
      manifest.tensors.push_back(master);
    }
    masters.push_back(std::move(master));
  }
  manifest.root = root_digest(manifest.tensors, base);
  manifest.master = all_are_masters ? manifest.root : root_digest(masters, base);
  return manifest;
}

Result<WeightManifest> read_manifest(const std::filesystem::path& file) {
  try {
    // Before anything else is read: other formats may lack or rename it.
    if (const json any = read_json_object(file, kMaxManifestBytes);
        any.value("format", 0) != kFormat)
      return Failure{fmt::format("{}: format {}; this build reads {}", file.string(),
                                 json_text(any.value("format", json())), kFormat)};
    const json root = read_proved_json(file);
    WeightManifest manifest;
    root.at("policy").get_to(manifest.policy);
    root.at("version").get_to(manifest.version);
    root.at("parent").get_to(manifest.parent);
    root.at("attempt").get_to(manifest.attempt);
    root.at("numerics_class").get_to(manifest.numerics_class);
    root.at("payload").get_to(manifest.payload);
    root.at("base").get_to(manifest.base);
    root.at("master").get_to(manifest.master);
    root.at("root").get_to(manifest.root);
    for (const json& tensor : root.at("tensors")) manifest.tensors.push_back(tensor_from(tensor));
    if (!is_file_name(manifest.payload)) {
      return Failure{
          fmt::format("{}: payload '{}' is not a file name", file.string(), manifest.payload)};
    }
    // Under another name it would pass for another version.
    const std::string stem = fmt::format("p{}-v{}", manifest.policy, manifest.version);
    if (file.filename() != stem + ".json" || manifest.payload != stem + ".safetensors")
      return Failure{
          fmt::format("{}: it is the manifest of version {} of policy {}, with the payload "
                      "{}: the file was exchanged or renamed",
                      file.string(), manifest.version, manifest.policy, manifest.payload)};
    return manifest;
  } catch (const json::exception& error) {
    return Failure{fmt::format("{}: not a weight manifest: {}", file.string(), error.what())};
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

std::string hardware(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

std::string numerics_class(const Elements& elements, const Device& device) {
  const auto name = [](Dtype dtype) { return dtype == Dtype::kBF16 ? "bf16" : "32"; };
  const Dtype weights = elements.weights;
  const Placement placement = Placement::on(device, elements);
  if (device.kind == DeviceKind::kCpu) {
    // In pairs the other operand is rounded, and a sum takes two terms at a time. What has no
    // weight of bfloat16 has none of either.
    const bool pairs = isa() == Isa::kAvx512Bf16;
    const bool in_pairs = pairs && weights == Dtype::kBF16;
    const Isa isa_of_products = pairs && !in_pairs ? Isa::kAvx512 : isa();
    return fmt::format("cpu-{}-w{}-a{}-kv{}-k{}-exact", name_of(isa_of_products), name(weights),
                       in_pairs ? "bf16" : "32", name(placement.kv_cache), in_pairs ? 2 : 1);
  }
  const auto& devices = backend_facts(device.kind).devices;
  const auto facts = std::ranges::find(devices, device.index, &DeviceFacts::index);
  TR_CHECK(facts != devices.end(), "this machine has no device {}", device.index);
  // Operands and the KV cache are of the weights' dtype there (core/model/placement.h), and the
  // shape of a weight decides its slices of k. Products of a library have the same bits, as far as
  // they were proved: which ones they are is named all the same.
  std::string slices = "kshape";
  if (const std::string products = library_products(device);
      weights == Dtype::kBF16 && !products.empty())
    slices += "+" + products;
  return fmt::format("cuda-{0}-w{1}-a{1}-kv{1}-{2}-exact", facts->architecture, name(weights),
                     slices);
}

}  // namespace tailrace
