// The frozen weights beside which an adapter is trained and sampled (Lora). They come from the
// files of the base, not as a version: each process packs its own, and the root of what it read is
// part of every adapter version, so that an adapter never samples beside another base.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <memory>

#include "core/base/digest.h"
#include "core/model/model_config.h"
#include "core/model/packed_weights.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

struct FrozenBase {
  std::shared_ptr<const PackedWeights> weights = {};
  Digest root = {};  // of its canonical values, as that of a version of them would be
};

// Reads the base in a folder, packs it, and proves what was packed against what was read. In memory
// beside the packed weights: a few tensors, until it returns. Throws UserError as load_parameters()
// does, and when the files change meanwhile or the memory does not hold what was packed.
FrozenBase load_frozen_base(const Stream& stream, const std::filesystem::path& directory,
                            const ModelConfig& config, Dtype dtype);

// Throws UserError where the adapter in a folder says that it was trained beside another base than
// the one of this root, which lies in `base`.
void require_base(const std::filesystem::path& adapter, const std::filesystem::path& base,
                  const Digest& root);

}  // namespace tailrace
