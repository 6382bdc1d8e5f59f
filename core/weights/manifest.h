// Weight versions: a number and a root digest over the XXH3-128 digests of fixed row blocks of
// every tensor's canonical bytes (design rule 4), so that a shard can be proved by itself.
//
// What is published is what samples: matrices in the dtype that computes, vectors float32. The root
// is of these. A second digest, the master, is of the float32 weights that the trainer holds: of
// two masters with equal bfloat16 the roots are equal, and yet they train on differently.
//
// A version is a safetensors file, which receivers map, and a manifest beside it. How the bytes of
// a version came to a receiver, whole or as a delta (delta_file.h), is no part of it. A receiver
// that has not proved the root does not sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/model/parameters.h"
#include "core/model/placement.h"
#include "core/weights/digest.h"

namespace tailrace {

struct WeightManifest {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest parent;        // root of the version that it was trained from; empty: there is none
  std::string attempt;  // to publish it: another process that publishes the version has another
  std::string numerics_class;
  std::string payload;  // file name beside the manifest
  std::vector<TensorManifest> tensors;
  Digest base = {};  // of the frozen weights that they are an adapter of; empty: of none
  Digest master;     // as the root would be if all were float32
  // Over the base, and names, dtypes, shapes and block digests, in order; not over ids, so equal
  // weights have equal roots.
  Digest root;
};

// Tensors that change together: "model", "experts" (of a sparse layer), "adapter". Two versions
// with the same root of a set have the same tensors there, which a delta between them leaves out
// unread.
struct TensorSet {
  std::string name;
  int64_t num_tensors = 0;
  Digest root;
};
std::vector<TensorSet> tensor_sets(std::span<const TensorManifest> tensors);
std::string_view set_of(std::string_view tensor);  // the name of its set

// The dtype in which values are published that compute in `compute`.
Dtype published_dtype(ParameterKind kind, Dtype compute);

// The bytes of a version's tensors in its payload.
int64_t published_bytes(const ParameterLayout& layout, Dtype compute);

// Digests of the current values as they are published; no files, no parent.
WeightManifest make_manifest(const Parameters& parameters, PolicyId policy, int64_t version,
                             const std::string& numerics_class, const Digest& base = {},
                             Dtype compute = Dtype::kF32);

// The manifest's file: JSON with a digest of itself, read back by read_manifest(), which refuses
// anything malformed or changed.
std::string to_json(const WeightManifest& manifest);
Result<WeightManifest> read_manifest(const std::filesystem::path& file);

// "cpu" or "cuda": the kind of `device`, for who looks and for who chooses between workers.
std::string hardware(const Device& device = {});

// "cpu-avx512-w32-a32-kv32-k1-exact": what must be equal for bits to be equal: backend, instruction
// set, dtypes of weights ("w32", "wbf16"), activations and KV cache, slices of k, exact or fast.
// A CPU that multiplies bfloat16 in pairs has "cpu-avx512_bf16-wbf16-abf16-kv32-k2-exact" for
// weights of bfloat16: what a product reads is rounded (abf16), and two terms go into a sum at once
// (k2). Of a GPU "cuda-sm_90-wbf16-abf16-kvbf16-kshape-exact", with a hash of the products that a
// library makes where it makes some ("kshape+0123abcd"). `device`: the one that computes.
std::string numerics_class(const Elements& elements = {}, const Device& device = {});

}  // namespace tailrace
