#include "core/weights/live_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/digest_of.h"
#include "core/model/packed_digests.h"
#include "core/model/rounding.h"
#include "core/model/safetensors.h"
#include "core/weights/digest.h"
#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "kernels/base/pulse.h"
#include "kernels/base/view.h"

namespace tailrace {
namespace {

// Values that are read, changed and digested before the next: they stay in the cache of a core.
constexpr int64_t kPieceValues = 64 << 10;

// Fills `rows` [n, cols] with the rows [first, first + n) of a tensor.
using ReadRows = std::function<void(int64_t first, Matrix rows)>;

// A row of the manifest is one of the first dimension: that of fused experts is a matrix.
int64_t rows_of_block(const TensorManifest& of, const PackedTensor& tensor) {
  const int64_t inner = of.shape[0] == 0 ? 1 : tensor.rows / of.shape[0];
  return of.rows_per_block * inner;
}

// The digests of a tensor of the manifest `of` from the rows of its packed form.
class HostDigests {
 public:
  TensorManifest digest(const TensorManifest& of, const PackedTensor& tensor,
                        const ReadRows& read) {
    TensorManifest found{of.name, of.dtype, of.shape, of.rows_per_block, {}};
    const int64_t block = rows_of_block(of, tensor);
    const int64_t cols = std::max<int64_t>(tensor.cols, 1);
    for (int64_t begin = 0; begin < tensor.rows; begin += block)
      found.blocks.push_back(
          digest_rows(begin, std::min(tensor.rows, begin + block), cols, of.dtype == "BF16", read));
    return found;
  }

 private:
  // A value that is read as a bfloat16 has the bits that it was read from.
  Digest digest_rows(int64_t begin, int64_t end, int64_t cols, bool as_bf16, const ReadRows& read) {
    RunningDigest digest;
    const int64_t step = std::max<int64_t>(1, kPieceValues / cols);
    for (int64_t first = begin; first < end; first += step) {
      beat();
      const int64_t rows = std::min(step, end - first);
      values_.resize(static_cast<size_t>(rows * cols));
      read(first, {values_.data(), rows, cols});
      if (as_bf16) {
        rounded_to_bf16(values_, [&](std::span<const std::byte> bytes) { digest.add(bytes); });
      } else {
        digest.add(std::as_bytes(std::span(values_)));
      }
    }
    return digest.value();
  }

  std::vector<float> values_;
};

void round_to_bf16(std::span<float> values) {
  // Runs of a fixed length: so the compiler makes vectors of them.
  constexpr size_t kRun = 64;
  size_t i = 0;
  for (; i + kRun <= values.size(); i += kRun) {
    float* run = values.data() + i;
    for (size_t j = 0; j < kRun; ++j) run[j] = to_float(to_bf16(run[j]));
  }
  for (; i < values.size(); ++i) values[i] = to_float(to_bf16(values[i]));
}

// Digests of the blocks of a tensor whose rows come in order, a few at a time.
class SourceDigests {
 public:
  explicit SourceDigests(int64_t rows_per_block) : rows_per_block_(rows_per_block) {}
  void add(int64_t first, const TensorValues& rows) {
    if (first > 0 && first % rows_per_block_ == 0) end_block();
    running_->add(rows.bytes());
  }
  std::vector<Digest> take() {
    end_block();
    return std::move(blocks_);
  }

 private:
  void end_block() {
    blocks_.push_back(running_->value());
    running_.emplace();
  }

  int64_t rows_per_block_;
  std::optional<RunningDigest> running_{std::in_place};
  std::vector<Digest> blocks_;
};

// Reads the values of the version as they become when they are packed. `source` sees the very
// values that are rounded: the file may have been written over since it was proved.
void read_as_packed(const WeightSource& source_of, const PackedTensor& tensor, int64_t first,
                    Matrix rows, SourceDigests& source) {
  const TensorValues values = source_of(tensor.name).part(first * rows.cols, rows.rows * rows.cols);
  const std::span to(rows.data, static_cast<size_t>(values.size()));
  values.to_floats(to);
  source.add(first, values);
  if (tensor.dtype == Dtype::kBF16) round_to_bf16(to);
  if (tensor.offset == 0) return;
  for (float& value : to) value += tensor.offset;
}

}  // namespace

Result<Digest> prove_packed(const Stream& stream, const PackedWeights& packed,
                            const ProvedWeights& version) {
  return prove_packed(
      stream, packed, version.tensors(),
      [&](std::string_view name) { return version.values(name); }, version.base());
}

Result<Digest> prove_packed(const Stream& stream, const PackedWeights& packed,
                            std::span<const TensorManifest> manifests, const WeightSource& values,
                            const Digest& base) {
  const std::vector<PackedTensor> tensors = packed.tensors();
  TR_CHECK(tensors.size() == manifests.size(), "{} tensors of {}", tensors.size(),
           manifests.size());
  const auto is_manifests = [&](size_t i) {
    return name_of(tensors[i].dtype) == manifests[i].dtype && tensors[i].offset == 0;
  };
  PackedDigests on_device(stream);
  std::vector<bool> is_on_device(tensors.size());
  // Only a tensor whose packed values are the manifest's own bits has digests that can be compared
  // where it lies; a rounded or shifted one is compared with the values as they become.
  for (size_t i = 0; i < tensors.size(); ++i)
    is_on_device[i] =
        is_manifests(i) && on_device.add(i, tensors[i], rows_of_block(manifests[i], tensors[i]));
  on_device.run();
  HostDigests digests;
  std::vector<TensorManifest> proved;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PackedTensor& tensor = tensors[i];
    const TensorManifest& manifest = manifests[i];
    TR_CHECK(tensor.name == manifest.name, "{} in the place of {}", tensor.name, manifest.name);
    TensorManifest found = manifest;
    if (is_on_device[i]) {
      found.blocks = on_device.blocks_of(i);
    } else {
      found = digests.digest(manifest, tensor, [&](int64_t first, Matrix rows) {
        packed.read(stream, tensor, first, rows);
      });
    }
    const bool same = is_manifests(i);
    SourceDigests source(rows_of_block(manifest, tensor));
    const TensorManifest expected =
        same ? manifest : digests.digest(manifest, tensor, [&](int64_t first, Matrix rows) {
          read_as_packed(values, tensor, first, rows, source);
        });
    if (!same && source.take() != manifest.blocks)
      return Failure{
          fmt::format("tensor {}: its file has changed since it was proved", tensor.name)};
    const auto [wrong, due] = std::ranges::mismatch(found.blocks, expected.blocks);
    if (wrong != found.blocks.end()) {
      const auto block = wrong - found.blocks.begin();
      return Failure{fmt::format(
          "tensor {} block {} (from row {}): packed it has the digest {}; the version gives {}",
          tensor.name, block, block * found.rows_per_block, *wrong, *due)};
    }
    proved.push_back(same ? std::move(found) : manifest);
  }
  return root_digest(proved, base);
}

}  // namespace tailrace
