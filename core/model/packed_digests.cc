#include "core/model/packed_digests.h"

#include <optional>
#include <span>

#include <fmt/format.h>

#include "kernels/base/memory.h"

namespace tailrace {
namespace {

// The matrices of a tensor as rows of one, where they have no gaps between them.
std::optional<Weight> as_one_matrix(const PackedTensor& tensor, Device device) {
  const WeightStack& stack = tensor.matrices;
  Weight all = stack.first;
  all.out *= stack.count;
  // The packed form pads each matrix to whole tiles: only where that adds nothing are the matrices
  // of a stack the rows of one.
  if (stack.count > 1 && weight_bytes(all.dtype, all.out, all.in, device) !=
                             static_cast<size_t>(stack.count) * stack.bytes)
    return std::nullopt;
  return all;
}

}  // namespace

bool PackedDigests::add(size_t id, const PackedTensor& tensor, int64_t rows_per_block) {
  if (stream_.device.kind == DeviceKind::kCpu || tensor.cols == 0 || tensor.rows == 0) return false;
  const int64_t blocks = (tensor.rows + rows_per_block - 1) / rows_per_block;
  const int64_t last_rows = tensor.rows - (blocks - 1) * rows_per_block;
  // XXH3 has other formulas for so short a block, which the kernel does not have.
  if (last_rows * tensor.cols * size_of(tensor.dtype) <= kMostUndigestedBytes) return false;
  const auto weight = as_one_matrix(tensor, stream_.device);
  if (!weight) return false;
  parts_[id] = {.args = {.weight = *weight,
                         .first_row = tensor.first_row,
                         .rows = tensor.rows,
                         .rows_per_block = rows_per_block,
                         .digests = {}},
                .first = num_halves_,
                .count = static_cast<size_t>(2 * blocks)};
  num_halves_ += static_cast<size_t>(2 * blocks);
  return true;
}

void PackedDigests::run() {
  if (parts_.empty()) return;
  halves_.resize(num_halves_);
  Buffer memory(halves_.size() * sizeof(uint64_t), stream_.device);
  const std::span all(reinterpret_cast<uint64_t*>(memory.bytes().data), halves_.size());
  for (auto& [id, part] : parts_) {
    part.args.digests = all.subspan(part.first, part.count);
    digest_rows(stream_, part.args);
  }
  copy(stream_, bytes_of(std::span(halves_)), memory.bytes().part(0, all.size_bytes()));
  wait(stream_);
}

std::vector<Digest> PackedDigests::blocks_of(size_t id) const {
  const Part& part = parts_.at(id);
  std::vector<Digest> blocks;
  // The high half first, as digest_of() writes the 128 bits.
  for (size_t i = part.first; i < part.first + part.count; i += 2)
    blocks.push_back(fmt::format("{:016x}{:016x}", halves_[i + 1], halves_[i]));
  return blocks;
}

}  // namespace tailrace
