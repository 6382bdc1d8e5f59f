// Copies of positions of a KV block: for each kv head they are one piece, in keys and in values.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

namespace tailrace::cuda {

namespace {

// Blocks are multiples of 16 bytes (block_tokens is one of 8, elements have 2 bytes or 4). Block y
// of the grid copies head y's keys, or values where z is 1.
__global__ void kv_copy_kernel(std::byte* keys, std::byte* values, int64_t from, int64_t to,
                               int64_t head_bytes, int64_t bytes) {
  std::byte* memory = (blockIdx.z == 0 ? keys : values) + blockIdx.y * head_bytes;
  const std::byte* source = memory + from;
  std::byte* target = memory + to;
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16;
  if (i + 16 <= bytes) {
    *reinterpret_cast<uint4*>(target + i) = *reinterpret_cast<const uint4*>(source + i);
  } else {
    for (int64_t j = i; j < bytes; j += 2)
      *reinterpret_cast<uint16_t*>(target + j) = *reinterpret_cast<const uint16_t*>(source + j);
  }
}

}  // namespace

void kv_copy(const Stream& stream, const KvCopy& args) {
  const KvLayer& kv = args.kv;
  TR_CHECK(kv.device == stream.device, "a cache of device {}", kv.device.index);
  TR_CHECK(args.from != args.to && args.tokens >= 0 && args.tokens <= kv.block_tokens,
           "{} positions of block {} to block {}", args.tokens, args.from, args.to);
  const int64_t row_bytes = kv.head_dim * size_of(kv.dtype),
                head_bytes = kv.block_tokens * row_bytes;
  const int64_t block_bytes = kv.num_kv_heads * head_bytes, bytes = args.tokens * row_bytes;
  if (bytes == 0) return;
  constexpr int kThreads = 128;
  launch(kv_copy_kernel,
         dim3(static_cast<unsigned>((bytes + 16 * kThreads - 1) / (16 * kThreads)),
              static_cast<unsigned>(kv.num_kv_heads), 2),
         dim3(kThreads), 0, stream, static_cast<std::byte*>(kv.keys),
         static_cast<std::byte*>(kv.values), args.from * block_bytes, args.to * block_bytes,
         head_bytes, bytes);
}

}  // namespace tailrace::cuda
