// Which rows a block has, where rows are grouped by expert and the device alone knows how.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/product.h"

namespace tailrace::cuda {

struct GroupTile {
  int group = -1;               // -1: there are not so many tiles
  int64_t first = 0, rows = 0;  // of the group
  int64_t tile = 0;             // in the group
};

// The `tile`-th of all tiles of kTile rows, of which every group begins its own. Each warp walks
// the offsets, 32 groups at a time; all of its lanes take part.
template <int kTile>
__device__ __forceinline__ GroupTile find_tile(const RowGroups& groups, int64_t tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto wanted = static_cast<int>(tile);
  for (int first = 0; first < groups.count; first += 32) {
    const int group = first + lane;
    int begin = 0, end = 0;
    if (group < groups.count) begin = groups.offsets[group], end = groups.offsets[group + 1];
    const int tiles = (end - begin + kTile - 1) / kTile;
    int up_to = tiles;  // of this group and those before it
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, up_to, step);
      if (lane >= step) up_to += before;
    }
    const unsigned behind = __ballot_sync(~0u, wanted < up_to);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      begin = __shfl_sync(~0u, begin, owner);
      end = __shfl_sync(~0u, end, owner);
      return {first + owner, begin, end - begin, wanted - __shfl_sync(~0u, up_to - tiles, owner)};
    }
    wanted -= __shfl_sync(~0u, up_to, 31);
  }
  return {};
}

// Makes of the whole product that of this block's group, and of `m_tile` a tile of it; false: there
// is nothing to do. Where groups are of k, that of the block is blockIdx.y.
template <ProductKind kKind, int kTile, class B>
__device__ __forceinline__ bool enter_group(Product<B>& p, int64_t& m_tile) {
  if (p.groups.offsets == nullptr) return true;
  if constexpr (kKind == ProductKind::kGradWeight) {
    const int64_t group = blockIdx.y;
    const int64_t begin = p.groups.offsets[group];
    p.a += begin * p.a_stride;
    p.b += begin * p.b_stride;
    p.c += group * p.group_stride;
    p.k = p.groups.offsets[group + 1] - begin;
    return p.k > 0;
  } else {
    const GroupTile found = find_tile<kTile>(p.groups, m_tile);
    if (found.group < 0) return false;
    p.a += found.first * p.a_stride;
    p.b += found.group * p.group_stride;
    p.c += found.first * p.c_stride;
    p.m = found.rows;
    m_tile = found.tile;
    return true;
  }
}

}  // namespace tailrace::cuda
