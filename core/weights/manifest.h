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

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/parameters.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

constexpr int64_t kDigestBlockBytes = 1
                                      << 20;  // a block is as many whole rows as fit, at least one

struct TensorManifest {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t rows_per_block = 0;
  std::vector<Digest> blocks;
};

struct WeightManifest {
  PolicyId policy = 0;
  int64_t version = 0, parent = -1;
  std::string numerics_class;
  std::string payload;  // file name beside the manifest
  std::vector<TensorManifest> tensors;
  Digest root;  // over names, dtypes, shapes and block digests, in order
};

// Digests of the current values; no files.
WeightManifest make_manifest(const Parameters& parameters, PolicyId policy, int64_t version,
                             const std::string& numerics_class);

// Writes payload, then manifest, each atomically; returns the manifest's file name. Keeps the
// newest `keep` versions.
Result<std::string> publish_weights(const std::filesystem::path& directory,
                                    const WeightManifest& manifest, const Parameters& parameters,
                                    int keep = 3);

Result<WeightManifest> read_manifest(const std::filesystem::path& file);

// Maps the payload, proves every block and the root against `expected_root`, and copies into
// `parameters`. A Failure names the tensor and the block.
Result<void> install_weights(const std::filesystem::path& manifest_file,
                             const Digest& expected_root, Parameters& parameters);

// "cpu-avx512-w32-a32-kv32-k1-exact": what must be equal for bits to be equal.
std::string numerics_class();

}  // namespace tailrace
