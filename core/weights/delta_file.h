// A file that leads from one weight version to another:
//
//   magic             8 bytes
//   digest            of all that follows up to the sections, as 32 hex digits
//   length            of the header, 8 bytes, lowest first
//   header            JSON: format, policy, from, to, attempt; the tensors in order, each with its
//                     name, dtype, shape, payload, offset (behind the header), bytes and digest
//   sections          one a tensor, without gaps: nothing where it is the same
//
// So every byte is compared or covered by a digest. Which versions these are, and that what comes
// out is the second, is for who has their manifests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/weights/delta_codec.h"
#include "kernels/base/dtype.h"

namespace tailrace {

struct DeltaEnds {
  PolicyId policy = 0;
  int64_t from_version = 0, to_version = 0;
  Digest from_root = {}, to_root = {};
  std::string attempt = {};  // to publish the second (WeightManifest)
  friend bool operator==(const DeltaEnds&, const DeltaEnds&) = default;
};

struct TensorBytes {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape = {};
  std::span<const std::byte> bytes = {};
};

struct DeltaSizes {
  int64_t dense = 0;       // bytes of all tensors
  int64_t file = 0;        // bytes
  int64_t compressed = 0;  // bytes of the sections of deltas
  int64_t full = 0;        // bytes of tensors that are sent whole
  int64_t same = 0;        // dense bytes of tensors that are not sent
  int64_t elements = 0, changed = 0;
};

// `from` and `to` have the same tensors in the same order, of a dtype that has_delta(), and each as
// many bytes as its shape says. A Failure (a full disk, a stop) leaves no file behind, and what was
// there before as it was. Takes as much memory as the deltas of one tensor. Beats. `on_progress`
// gets the bytes of `to` that are encoded.
//
// Thread: any.
Result<DeltaSizes> write_delta(
    const std::filesystem::path& path, const DeltaEnds& ends, std::span<const TensorBytes> from,
    std::span<const TensorBytes> to, const DeltaCost& cost, std::stop_token stop = {},
    const std::function<void(int64_t)>& on_progress = [](int64_t) {});

// Such a file, mapped. It comes from outside: open() proves the header and checks every length and
// offset, so that later calls stay within the file. Failures name the file. Nobody writes to it
// while it is mapped: it is replaced or removed.
//
// Thread: any, also several at once.
class DeltaFile {
 public:
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::kF32;
    std::vector<int64_t> shape = {};
    TensorPayload payload = TensorPayload::kSame;
    int64_t offset = 0, bytes = 0;  // of its section
    Digest digest = {};             // of its section
    int64_t dense_bytes = 0;
  };

  static Result<DeltaFile> open(const std::filesystem::path& path);
  ~DeltaFile();
  DeltaFile(DeltaFile&&) noexcept;
  DeltaFile& operator=(DeltaFile&&) noexcept;

  const std::filesystem::path& path() const;
  const DeltaEnds& ends() const;
  std::span<const Tensor> tensors() const;

  // Every byte of the file. A Failure names the tensor.
  Result<void> prove() const;

  // The tensor of that index behind it, into `out`, which has its dense size and overlaps nothing:
  // applied twice is applied once. Proves the section first. `base` has the dense size too; a
  // tensor that is full needs none. A wrong base gives wrong values, and no Failure. `decoder`: of
  // who applies many tensors, so that its memory is used again.
  Result<void> apply(size_t index, std::span<const std::byte> base, std::span<std::byte> out) const;
  Result<void> apply(DeltaDecoder& decoder, size_t index, std::span<const std::byte> base,
                     std::span<std::byte> out) const;

 private:
  struct State;
  explicit DeltaFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tailrace
