// Weight versions: a number and a root digest over the XXH3-128 digests of fixed row blocks of
// every tensor's canonical bytes (design rule 4), so that a shard can be proved by itself. Versions
// form a chain.
//
// On one host a version is a safetensors file below RUN/weights that receivers map; its manifest is
// a small JSON file beside it. A receiver that has not proved the root digest does not sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/model/parameters.h"
#include "core/weights/digest.h"

namespace tailrace {

struct WeightManifest {
  PolicyId policy = 0;
  int64_t version = 0, parent = -1;
  std::string numerics_class;
  std::string payload;  // file name beside the manifest
  std::vector<TensorManifest> tensors;
  Digest base = {};  // of the frozen weights that they are an adapter of; empty: of none
  // Over the base, and names, dtypes, shapes and block digests, in order; not over ids, so equal
  // weights have equal roots.
  Digest root;
};

// Digests of the current values; no files.
WeightManifest make_manifest(const Parameters& parameters, PolicyId policy, int64_t version,
                             const std::string& numerics_class, const Digest& base = {});

// The manifest's file: JSON, read back by read_manifest(), which refuses anything malformed.
std::string to_json(const WeightManifest& manifest);
Result<WeightManifest> read_manifest(const std::filesystem::path& file);

// "cpu": the kind of `device`, for who looks and for who chooses between workers.
std::string hardware(const Device& device = {});

// "cpu-avx512-w32-a32-kv32-k1-exact": what must be equal for bits to be equal: backend, instruction
// set, dtypes of weights ("w32", "wbf16"), activations and KV cache, slices of k, exact or fast.
// `device`: the one that computes.
std::string numerics_class(Dtype weights = Dtype::kF32, const Device& device = {});

}  // namespace tailrace
