#include "core/weights/digest.h"

#include <algorithm>

#include "core/base/digest_of.h"
#include "core/model/rounding.h"
#include "core/model/safetensors.h"
#include "kernels/base/dtype.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

int64_t num_rows(std::span<const int64_t> shape) { return shape.empty() ? 1 : shape[0]; }

// The bytes that go into a root, each part with its length, so that no two lists of tensors give
// the same bytes.
class RootBytes {
 public:
  void add(int64_t number) {
    // Byte by byte, lowest first, so that a root is the same on every machine.
    const auto value = static_cast<uint64_t>(number);
    for (int shift = 0; shift < 64; shift += 8)
      bytes_.push_back(static_cast<std::byte>(value >> shift));
  }
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    for (char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// The entry of a tensor whose elements are `all`; `digest` is asked for each block.
template <class Element, class DigestOf>
TensorManifest digest_blocks(std::string name, std::string dtype, std::vector<int64_t> shape,
                             int64_t element_bytes, std::span<const Element> all,
                             const DigestOf& digest) {
  TensorManifest tensor{std::move(name), std::move(dtype), std::move(shape), 0, {}};
  tensor.rows_per_block = rows_per_block(tensor.shape, element_bytes);
  // Whole rows: a shard of a tensor is some of its rows, and can then be proved by itself.
  const int64_t rows = num_rows(tensor.shape);
  const size_t row = rows == 0 ? 0 : all.size() / static_cast<size_t>(rows);
  for (int64_t first = 0; first < rows; first += tensor.rows_per_block) {
    beat();
    const int64_t count = std::min(tensor.rows_per_block, rows - first);
    tensor.blocks.push_back(
        digest(all.subspan(static_cast<size_t>(first) * row, static_cast<size_t>(count) * row)));
  }
  return tensor;
}

}  // namespace

int64_t rows_per_block(std::span<const int64_t> shape, int64_t element_bytes) {
  int64_t row_bytes = element_bytes;
  for (size_t i = 1; i < shape.size(); ++i) row_bytes *= shape[i];
  // A row that is larger than a block is one; a row without bytes must not divide by 0.
  return std::max<int64_t>(1, kDigestBlockBytes / std::max<int64_t>(1, row_bytes));
}

TensorManifest digest_tensor(std::string name, std::string dtype, std::vector<int64_t> shape,
                             int64_t element_bytes, std::span<const std::byte> bytes) {
  return digest_blocks(std::move(name), std::move(dtype), std::move(shape), element_bytes, bytes,
                       [](std::span<const std::byte> block) { return digest_of(block); });
}

TensorManifest digest_rounded(std::string name, std::vector<int64_t> shape,
                              std::span<const float> values) {
  return digest_blocks(std::move(name), "BF16", std::move(shape), sizeof(Bf16), values,
                       [](std::span<const float> block) {
                         RunningDigest digest;
                         rounded_to_bf16(
                             block, [&](std::span<const std::byte> bytes) { digest.add(bytes); });
                         return digest.value();
                       });
}

Digest root_digest(std::span<const TensorManifest> tensors, const Digest& base) {
  RootBytes root;
  root.add(static_cast<int64_t>(tensors.size()));
  for (const TensorManifest& tensor : tensors) {
    root.add(tensor.name);
    root.add(tensor.dtype);
    root.add(static_cast<int64_t>(tensor.shape.size()));
    for (int64_t size : tensor.shape) root.add(size);
    root.add(tensor.rows_per_block);
    root.add(static_cast<int64_t>(tensor.blocks.size()));
    for (const Digest& block : tensor.blocks) root.add(block);
  }
  if (!base.empty()) root.add(base);
  return digest_of(root.bytes());
}

}  // namespace tailrace
