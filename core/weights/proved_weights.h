// A weight version that has been proved: the only form in which a receiver gets at its values
// (design rule 4).
//
// Thread: any.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/packed_weights.h"
#include "core/model/parameters.h"
#include "core/model/safetensors.h"
#include "core/weights/manifest.h"

namespace tailrace {

// The mapped payload of a version and its manifest. Only prove_weights() makes one. Move-only; the
// spans are views of the mapping, which lives as long as this object.
class ProvedWeights {
 public:
  const WeightManifest& manifest() const { return manifest_; }
  const Digest& root() const { return manifest_.root; }
  const Digest& base() const { return manifest_.base; }  // of frozen weights; empty: of none
  // The shapes of the model's tensors, in the order of its layout, and the digests of their
  // blocks.
  std::span<const TensorManifest> tensors() const { return manifest_.tensors; }
  TensorValues values(std::string_view name) const;  // TR_CHECKs that it exists

 private:
  friend Result<ProvedWeights> prove_weights(const std::filesystem::path& manifest_file,
                                             const Digest& expected_root,
                                             const ParameterLayout& layout);
  ProvedWeights(WeightManifest manifest, std::unique_ptr<const SafetensorsFile> payload);

  WeightManifest manifest_;
  std::unique_ptr<const SafetensorsFile> payload_;
};

// Maps the payload beside the manifest and proves it against `expected_root`: every block, and that
// the tensors are those of `layout`, matrices float32 or bfloat16, vectors float32. A Failure names
// the tensor and the block.
Result<ProvedWeights> prove_weights(const std::filesystem::path& manifest_file,
                                    const Digest& expected_root, const ParameterLayout& layout);

}  // namespace tailrace
