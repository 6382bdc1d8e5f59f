// From the product of a layer to what attention reads: a head of a token by 16 threads, which norm
// it, turn it and store it where it belongs; values are only stored.
//
// Order of sums: a thread adds the squares of its own elements in ascending order, first those of
// the lower half of the head; the 16 threads are joined by a butterfly. Which elements are a
// thread's own is head_dim's alone to decide.
//
// Keys and values of the cache are [blocks, kv_heads, block_tokens, head_dim].
#include <bit>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kHeadThreads = 16, kQkvThreads = 128;

struct QkvCall {
  const void* qkv = nullptr;
  void *qk = nullptr, *keys = nullptr, *values = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *table = nullptr;
  const int32_t *positions = nullptr, *seq_offsets = nullptr, *tables = nullptr;
  int64_t qkv_stride = 0, qk_stride = 0, table_stride = 0, num_tokens = 0;
  int max_blocks = 0, page_shift = 0, num_sequences = 0;
  int num_heads = 0, num_kv_heads = 0, dim = 0;
  float eps = 0;
};

// kCount neighbours, as wide as they are.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};
template <int kCount, class T>
__device__ __forceinline__ void load_pack(const T* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.values[i]);
}
template <class T>
__device__ __forceinline__ T rounded_to(float x) {
  if constexpr (sizeof(T) == 2) {
    return to_bf16(x);
  } else {
    return x;
  }
}
// The cache has what qk has, rounded once more where its elements are smaller.
template <class T, class Cached, int kCount>
__device__ __forceinline__ void store_packs(const float (&x)[kCount], T* to, Cached* cached) {
  Pack<T, kCount> pack;
  Pack<Cached, kCount> other;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    pack.values[i] = rounded_to<T>(x[i]);
    other.values[i] = rounded_to<Cached>(to_float(pack.values[i]));
  }
  if (to != nullptr) *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
  if (cached != nullptr) *reinterpret_cast<Pack<Cached, kCount>*>(cached) = other;
}

// Pairs (i, i + dim / 2): kVec neighbours i a thread at a time.
template <class T, class Cached, int kVec>
__global__ void __launch_bounds__(kQkvThreads) cache_qkv_kernel(QkvCall call) {
  constexpr int kSteps = kMaxHeadDim / 2 / kHeadThreads / kVec;
  const int num_slots = call.num_heads + 2 * call.num_kv_heads;
  const int64_t item = (int64_t{blockIdx.x} * kQkvThreads + threadIdx.x) / kHeadThreads;
  const int64_t token = item / num_slots;
  // Whole warps pass here together: the butterfly wants all 32 lanes.
  const bool valid = token < call.num_tokens;
  const int slot = static_cast<int>(item % num_slots);
  const int own = static_cast<int>(threadIdx.x) % kHeadThreads * kVec, half = call.dim / 2;
  const bool is_query = slot < call.num_heads;
  const bool is_value = slot >= call.num_heads + call.num_kv_heads;
  const T* from =
      static_cast<const T*>(call.qkv) + token * call.qkv_stride + int64_t{slot} * call.dim;

  float low[kSteps][kVec], high[kSteps][kVec];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int i = own + s * kHeadThreads * kVec;
    if (valid && i < half) {
      load_pack<kVec>(from + i, low[s]);
      load_pack<kVec>(from + half + i, high[s]);
    } else {
      for (int v = 0; v < kVec; ++v) low[s][v] = high[s][v] = 0;
    }
  }

  const float* weight = is_query ? call.q_norm : call.k_norm;
  if (weight != nullptr) {  // of all slots or of none
    float squares = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      for (float x : low[s]) squares = fmaf(x, x, squares);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      for (float x : high[s]) squares = fmaf(x, x, squares);
    for (int bits = kHeadThreads / 2; bits > 0; bits /= 2)
      squares += __shfl_xor_sync(~0u, squares, bits);
    if (!is_value) {
      const float inv = 1 / sqrtf(squares / static_cast<float>(call.dim) + call.eps);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int i = own + s * kHeadThreads * kVec;
        if (i >= half) continue;
        for (int v = 0; v < kVec; ++v) {
          low[s][v] = low[s][v] * inv * weight[i + v];
          high[s][v] = high[s][v] * inv * weight[half + i + v];
        }
      }
    }
  }
  if (!valid) return;

  const int position = call.positions[token];
  T* to = is_value ? nullptr
                   : static_cast<T*>(call.qk) + token * call.qk_stride + int64_t{slot} * call.dim;
  Cached* cached = nullptr;
  if (!is_query) {
    const int kv_head = (slot - call.num_heads) % call.num_kv_heads;
    const int sequence = sequence_of(call.seq_offsets, call.num_sequences, token);
    cached = static_cast<Cached*>(is_value ? call.values : call.keys) +
             cached_at(call, call.tables + int64_t{sequence} * call.max_blocks, kv_head, position);
  }
  const float* angles = call.table + position * call.table_stride;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int i = own + s * kHeadThreads * kVec;
    if (i >= half) continue;
    if (!is_value) {
      float cosine[kVec], sine[kVec];
      load_pack<kVec>(angles + i, cosine);
      load_pack<kVec>(angles + half + i, sine);
      for (int v = 0; v < kVec; ++v) {
        const float a = low[s][v], b = high[s][v];
        low[s][v] = fmaf(a, cosine[v], -(b * sine[v]));
        high[s][v] = fmaf(b, cosine[v], a * sine[v]);
      }
    }
    store_packs(low[s], to == nullptr ? nullptr : to + i, cached == nullptr ? nullptr : cached + i);
    store_packs(high[s], to == nullptr ? nullptr : to + half + i,
                cached == nullptr ? nullptr : cached + half + i);
  }
}

template <class T, class Cached>
void run_cache_qkv(const Stream& stream, const QkvCall& call) {
  const int64_t threads = call.num_tokens * (call.num_heads + 2 * call.num_kv_heads) * kHeadThreads;
  const dim3 grid(static_cast<unsigned>((threads + kQkvThreads - 1) / kQkvThreads));
  if (call.dim % 8 == 0) {
    launch(cache_qkv_kernel<T, Cached, 4>, grid, dim3(kQkvThreads), 0, stream, call);
  } else {
    launch(cache_qkv_kernel<T, Cached, 1>, grid, dim3(kQkvThreads), 0, stream, call);
  }
}

void check_cache_qkv(const Stream& stream, const CacheQkv& args) {
  const KvLayer& kv = args.kv;
  const int64_t dim = kv.head_dim, rows = args.batch.num_tokens();
  const int64_t turned = args.num_heads + kv.num_kv_heads;
  TR_CHECK(dim > 0 && dim <= kMaxHeadDim && dim % 2 == 0, "head_dim {}", dim);
  TR_CHECK(kv.block_tokens >= 8 && std::has_single_bit(static_cast<unsigned>(kv.block_tokens)),
           "block_tokens {}", kv.block_tokens);
  TR_CHECK(args.qkv.rows == rows && args.qkv.cols == (turned + kv.num_kv_heads) * dim &&
               args.qk.rows == rows && args.qk.cols == turned * dim,
           "qkv [{}, {}], qk [{}, {}], {} rows", args.qkv.rows, args.qkv.cols, args.qk.rows,
           args.qk.cols, rows);
  TR_CHECK(args.qkv.dtype == args.qk.dtype && args.qkv.device == stream.device &&
               args.qk.device == stream.device && kv.device == stream.device,
           "dtypes or devices");
  TR_CHECK(args.table.cols == dim, "table of {} columns, head_dim {}", args.table.cols, dim);
  TR_CHECK(args.q_norm.size() == args.k_norm.size() &&
               (args.q_norm.empty() || args.q_norm.size() == static_cast<size_t>(dim)),
           "norms of {} and {}, head_dim {}", args.q_norm.size(), args.k_norm.size(), dim);
}

}  // namespace

void cache_qkv(const Stream& stream, const CacheQkv& args) {
  check_cache_qkv(stream, args);
  const AttentionBatch& batch = args.batch;
  if (batch.num_tokens() == 0) return;
  const auto table = args.table.on<float>(stream.device);
  QkvCall call;
  call.qkv = args.qkv.data;
  call.qk = args.qk.data;
  call.keys = args.kv.keys;
  call.values = args.kv.values;
  if (!args.q_norm.empty()) {
    call.q_norm = args.q_norm.data();
    call.k_norm = args.k_norm.data();
  }
  call.table = table.data;
  call.positions = batch.positions.data();
  call.seq_offsets = batch.seq_offsets.data();
  call.tables = batch.block_tables.data();
  call.qkv_stride = args.qkv.stride;
  call.qk_stride = args.qk.stride;
  call.table_stride = table.stride;
  call.num_tokens = batch.num_tokens();
  call.max_blocks = batch.max_blocks;
  call.page_shift = std::countr_zero(static_cast<unsigned>(args.kv.block_tokens));
  call.num_sequences = static_cast<int>(batch.num_sequences());
  call.num_heads = args.num_heads;
  call.num_kv_heads = args.kv.num_kv_heads;
  call.dim = args.kv.head_dim;
  call.eps = args.eps;

  const bool cache_is_float = args.kv.dtype == Dtype::kF32;
  TR_CHECK(cache_is_float || args.kv.dtype == Dtype::kBF16, "dtype of the cache");
  if (args.qkv.dtype == Dtype::kF32) {
    cache_is_float ? run_cache_qkv<float, float>(stream, call)
                   : run_cache_qkv<float, Bf16>(stream, call);
  } else {
    TR_CHECK(args.qkv.dtype == Dtype::kBF16, "dtype of qkv");
    cache_is_float ? run_cache_qkv<Bf16, float>(stream, call)
                   : run_cache_qkv<Bf16, Bf16>(stream, call);
  }
}

}  // namespace tailrace::cuda
