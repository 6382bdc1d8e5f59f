#include "core/weights/proved_weights.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/weights/digest.h"
#include "kernels/base/check.h"

namespace tailrace {

namespace {

namespace fs = std::filesystem;

Result<void> prove_tensor(const TensorManifest& expected, const ParameterInfo& info,
                          const TensorView& view) {
  const bool may_be =
      view.dtype == Dtype::kF32 || view.dtype == published_dtype(info.kind, Dtype::kBF16);
  if (expected.name != info.name || expected.shape != info.shape || view.shape != info.shape ||
      expected.dtype != name_of(view.dtype) || !may_be) {
    return Failure{
        fmt::format("tensor {}: another name, shape or dtype than the model's", info.name)};
  }
  // Our own writer aligns the data; another one's header may be of any length.
  const auto align = static_cast<size_t>(size_of(view.dtype));
  if (reinterpret_cast<uintptr_t>(view.data.data()) % align != 0) {
    return Failure{
        fmt::format("tensor {}: its data begin at a byte of the payload that is no multiple of {}; "
                    "pad the header with spaces",
                    info.name, align)};
  }
  const TensorManifest found =
      digest_tensor(info.name, expected.dtype, info.shape, size_of(view.dtype), view.data);
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

ProvedWeights::ProvedWeights(WeightManifest manifest,
                             std::unique_ptr<const SafetensorsFile> payload)
    : manifest_(std::move(manifest)), payload_(std::move(payload)) {}

TensorValues ProvedWeights::values(std::string_view name) const {
  const auto found = payload_->tensors().find(name);
  TR_CHECK(found != payload_->tensors().end(), "no tensor '{}'", name);
  const TensorView& view = found->second;
  const auto size = static_cast<size_t>(view.num_elements());
  if (view.dtype == Dtype::kBF16)
    return std::span(reinterpret_cast<const Bf16*>(view.data.data()), size);
  return std::span(reinterpret_cast<const float*>(view.data.data()), size);
}

Result<ProvedWeights> prove_weights(const fs::path& manifest_file, const Digest& expected_root,
                                    const ParameterLayout& layout) {
  auto manifest = read_manifest(manifest_file);
  if (!manifest) return manifest.failure();
  const auto refuse = [&](const std::string& why) {
    return Failure{fmt::format("{}: {}", manifest_file.string(), why)};
  };
  // The root proves the block digests, and these prove the bytes below.
  const Digest root = root_digest(manifest.value().tensors, manifest.value().base);
  if (root != expected_root || root != manifest.value().root) {
    return refuse(fmt::format("root {} of its blocks; it says {}, and {} is wanted", root,
                              manifest.value().root, expected_root));
  }
  try {
    auto payload = std::make_unique<const SafetensorsFile>(manifest_file.parent_path() /
                                                           manifest.value().payload);
    if (auto proof = prove_all(manifest.value(), *payload, layout); !proof)
      return Failure{fmt::format("{}: {}", payload->path().string(), proof.failure().message)};
    return ProvedWeights(std::move(manifest).value(), std::move(payload));
  } catch (const UserError& error) {
    return refuse(error.what());
  }
}

}  // namespace tailrace
