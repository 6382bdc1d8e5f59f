// Digests of weights (XXH3-128): of blocks of rows, and of a whole version over those.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/digest.h"

namespace tailrace {

// A block is as many whole rows (of the first dimension) as fit, at least one.
constexpr int64_t kDigestBlockBytes = 1 << 20;

struct TensorManifest {
  std::string name, dtype;  // "F32", "BF16"
  std::vector<int64_t> shape;
  int64_t rows_per_block = 0;
  std::vector<Digest> blocks;
};

// How many rows of the first dimension make a block; a scalar is one row.
int64_t rows_per_block(std::span<const int64_t> shape, int64_t element_bytes);

// One tensor's entry; `bytes` are its canonical bytes: row-major, little-endian.
TensorManifest digest_tensor(std::string name, std::string dtype, std::vector<int64_t> shape,
                             int64_t element_bytes, std::span<const std::byte> bytes);

// The same of values that are published as bfloat16.
TensorManifest digest_rounded(std::string name, std::vector<int64_t> shape,
                              std::span<const float> values);

// `base`: the root of frozen weights that these go with, as those of an adapter do; empty: none.
Digest root_digest(std::span<const TensorManifest> tensors, const Digest& base = {});

}  // namespace tailrace
