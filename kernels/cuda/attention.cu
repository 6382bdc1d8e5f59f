// Attention: the choice between decode and prefill in bfloat16 (attention.cuh), and the float32
// kernel.
//
// float32, order of sums: a warp a (token, head). A score is one chain of fused multiply-adds over
// head_dim. Tiles of 64 absolute positions, each with the running maximum: a lane adds its two
// exponentials, the lanes are joined by a butterfly, and the weighted sum of values goes over
// positions one by one. A position that the row does not see is not read.
#include <algorithm>
#include <bit>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sequences.cuh"

namespace tailrace::cuda {

namespace {

constexpr int kFloatWarps = 4;

__device__ __forceinline__ float float_score(const float* q, const float* key, int dim) {
  float score = 0;
  if (dim % 4 == 0) {  // so rows begin at multiples of 16 bytes
    for (int d = 0; d < dim; d += 4) {
      const float4 k = *reinterpret_cast<const float4*>(key + d);
      score = fmaf(q[d], k.x, score);
      score = fmaf(q[d + 1], k.y, score);
      score = fmaf(q[d + 2], k.z, score);
      score = fmaf(q[d + 3], k.w, score);
    }
  } else {
    for (int d = 0; d < dim; ++d) score = fmaf(q[d], key[d], score);
  }
  return score;
}

__global__ void __launch_bounds__(32 * kFloatWarps) attention_float_kernel(AttentionCall call) {
  __shared__ float queries[kFloatWarps][kMaxHeadDim];
  __shared__ float tile_weights[kFloatWarps][kTile];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = int64_t{blockIdx.x} * kFloatWarps + warp;
  if (item >= int64_t{call.num_tokens} * call.num_heads) return;
  const int token = static_cast<int>(item / call.num_heads);
  const int head = static_cast<int>(item % call.num_heads), kv_head = head / call.group;
  const int sequence = sequence_of(call.seq_offsets, call.num_sequences, token);
  const int32_t* table = call.tables + int64_t{sequence} * call.max_blocks;
  const int position = call.positions[token], first = call.first_seen(position);
  const auto *keys = static_cast<const float*>(call.keys),
             *values = static_cast<const float*>(call.values);
  float *q = queries[warp], *weights = tile_weights[warp];
  const float* from = static_cast<const float*>(call.q) + token * call.q_stride + head * call.dim;
  for (int d = lane; d < call.dim; d += 32) q[d] = from[d];
  __syncwarp();

  float most = -INFINITY, total = 0, out[kMaxHeadDim / 32] = {};
  for (int tile = first / kTile * kTile; tile <= position; tile += kTile) {
    float score[2], top = -INFINITY;
    for (int i = 0; i < 2; ++i) {
      const int p = tile + lane + 32 * i;
      score[i] = -INFINITY;
      if (p >= first && p <= position)
        score[i] = call.scale * float_score(q, keys + cached_at(call, table, kv_head, p), call.dim);
      top = fmaxf(top, score[i]);
    }
    for (int bits = 16; bits > 0; bits /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bits));
    const float now = fmaxf(most, top), kept = exp2f(most - now);
    float sum = 0;
    for (int i = 0; i < 2; ++i) {
      score[i] = exp2f(score[i] - now);
      weights[lane + 32 * i] = score[i];
      sum += score[i];
    }
    for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
    total = fmaf(total, kept, sum);
    most = now;
#pragma unroll
    for (float& o : out) o *= kept;
    __syncwarp();  // all weights are there
    for (int p = max(tile, first); p <= min(tile + kTile - 1, position); ++p) {
      const float weight = weights[p - tile];
      const float* value = values + cached_at(call, table, kv_head, p);
#pragma unroll
      for (int i = 0; i < kMaxHeadDim / 32; ++i) {
        if (lane + 32 * i < call.dim) out[i] = fmaf(weight, value[lane + 32 * i], out[i]);
      }
    }
    __syncwarp();  // all weights are read
  }
  float* to = static_cast<float*>(call.out) + token * call.out_stride + head * call.dim;
#pragma unroll
  for (int i = 0; i < kMaxHeadDim / 32; ++i) {
    if (lane + 32 * i < call.dim) to[lane + 32 * i] = out[i] / total;
  }
  if (call.lse != nullptr && lane == 0)
    call.lse[token * call.lse_stride + head] = finished_lse(most, total);
}

// Decode in chunks fills a GPU where there are fewer than so many pairs of an item and a kv head;
// more of them fill it anyway. But the samples of a prompt share chunks, and long contexts are
// mostly prompts: so these go in chunks too while the states are few. Which it is changes no bit.
constexpr int64_t kMaxSplitPairs = 1024, kMaxLongStates = 32768;
constexpr int kLongChunks = 4;
// A mixed batch is divided where contexts may be as long as that many chunks: a row alone with a
// long context would keep one block of prefill busy for long.
constexpr int kDividedChunks = 4;

int chunks_of(int max_context) {
  return max_context > kChunk ? (max_context + kChunk - 1) / kChunk : 1;
}
// How many states a head of each group may keep; no fewer for more chunks.
int64_t max_states(int64_t chunks) {
  const int64_t most = kMaxSplitPairs * chunks;
  return chunks >= kLongChunks ? std::max(most, kMaxLongStates) : most;
}
// `states` of each head.
int64_t state_floats(int64_t states, int num_heads, int head_dim) {
  return states * num_heads * (head_dim + 2);
}

void check_results(const Stream& stream, const Attention& args) {
  const int64_t rows = args.batch.num_tokens();
  TR_CHECK(args.out.rows == rows && args.out.cols == args.q.cols, "out [{}, {}], q [{}, {}]",
           args.out.rows, args.out.cols, args.q.rows, args.q.cols);
  TR_CHECK(args.out.device == stream.device, "out of a device");
  TR_CHECK(args.out.dtype == Dtype::kF32 ||
               (args.out.dtype == Dtype::kBF16 && args.kv.dtype == Dtype::kBF16),
           "dtype of out");
  TR_CHECK(
      args.lse.data == nullptr || (args.lse.rows == rows && args.lse.cols == args.heads.num_heads),
      "lse [{}, {}]", args.lse.rows, args.lse.cols);
}

}  // namespace

AttentionCall attention_call(const Stream& stream, const ConstTensor& q,
                             const AttentionHeads& heads, const AttentionBatch& batch,
                             const KvLayer& kv) {
  const int64_t rows = batch.num_tokens();
  const bool is_float = kv.dtype == Dtype::kF32;
  TR_CHECK(kv.device == stream.device && (is_float || kv.dtype == Dtype::kBF16),
           "a cache of device {}, dtype {}", kv.device.index, static_cast<int>(kv.dtype));
  TR_CHECK(kv.head_dim > 0 && kv.head_dim <= kMaxHeadDim && (is_float || kv.head_dim % 8 == 0),
           "head_dim {}", kv.head_dim);
  TR_CHECK(kv.num_kv_heads > 0 && heads.num_heads % kv.num_kv_heads == 0, "{} heads, {} kv heads",
           heads.num_heads, kv.num_kv_heads);
  TR_CHECK(kv.block_tokens >= 8 && std::has_single_bit(static_cast<unsigned>(kv.block_tokens)),
           "block_tokens {}", kv.block_tokens);
  TR_CHECK(q.rows == rows && q.cols == int64_t{heads.num_heads} * kv.head_dim,
           "q [{}, {}], {} rows of {} heads of {}", q.rows, q.cols, rows, heads.num_heads,
           kv.head_dim);
  TR_CHECK(q.device == stream.device, "q of a device");
  TR_CHECK(q.dtype == Dtype::kF32 || (q.dtype == Dtype::kBF16 && !is_float), "dtype of q");
  TR_CHECK(heads.scale > 0, "a scale of {}", heads.scale);
  TR_CHECK(batch.block_tables.size() ==
               static_cast<size_t>(batch.num_sequences()) * static_cast<size_t>(batch.max_blocks),
           "block tables of {}, {} sequences of {}", batch.block_tables.size(),
           batch.num_sequences(), batch.max_blocks);
  AttentionCall call;
  call.q = q.data;
  call.q_stride = q.stride;
  call.float_q = q.dtype == Dtype::kF32;
  call.keys = kv.keys;
  call.values = kv.values;
  call.positions = batch.positions.data();
  call.seq_offsets = batch.seq_offsets.data();
  call.tables = batch.block_tables.data();
  call.max_blocks = batch.max_blocks;
  call.page_shift = std::countr_zero(static_cast<unsigned>(kv.block_tokens));
  call.num_tokens = static_cast<int>(rows);
  call.num_sequences = static_cast<int>(batch.num_sequences());
  call.num_heads = heads.num_heads;
  call.num_kv_heads = kv.num_kv_heads;
  call.group = call.num_heads / call.num_kv_heads;
  call.dim = kv.head_dim;
  call.window = heads.window;
  call.scale = heads.scale * kLog2E;
  return call;
}

void attention(const Stream& stream, Workspace& workspace, const Attention& args) {
  AttentionCall call = attention_call(stream, args.q, args.heads, args.batch, args.kv);
  check_results(stream, args);
  if (call.num_tokens == 0) return;
  call.out = args.out.data;
  call.out_stride = args.out.stride;
  call.float_out = args.out.dtype == Dtype::kF32;
  if (args.lse.data != nullptr) {
    call.lse = args.lse.on<float>(stream.device).data;
    call.lse_stride = args.lse.stride;
  }

  if (args.kv.dtype == Dtype::kF32) {
    const int64_t items = int64_t{call.num_tokens} * call.num_heads;
    launch(attention_float_kernel,
           dim3(static_cast<unsigned>((items + kFloatWarps - 1) / kFloatWarps)),
           dim3(32 * kFloatWarps), 0, stream, call);
    return;
  }
  const int chunks = chunks_of(args.max_context);
  const bool is_decode = call.num_tokens == call.num_sequences;  // every row by itself
  call.divided = !is_decode && call.num_sequences > 1 && chunks >= kDividedChunks;
  constexpr int kMaxGrid = 65535;
  if (call.num_sequences > kMaxGrid || !(is_decode || call.divided)) {
    call.divided = false;
    return attention_prefill(stream, call);
  }
  Workspace::Scope scope(workspace);
  const int items = call.num_sequences;
  const int64_t most = int64_t{items} * chunks;
  const int num_chunks = most * call.num_kv_heads <= max_states(chunks) ? chunks : 1;
  auto states = workspace.take<float>(num_chunks > 1 ? state_floats(most, call.num_heads, call.dim)
                                                     : int64_t{0});
  attention_decode(stream, states.data(), num_chunks, items, call);
  if (call.divided) attention_prefill(stream, call);
}

size_t attention_workspace_bytes(int64_t rows, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context) {
  auto workspace = Workspace::measuring();
  const int64_t chunks = chunks_of(max_context);
  const int64_t states = std::min(rows * chunks, max_states(chunks) / num_kv_heads);
  {
    Workspace::Scope scope(workspace);
    workspace.take<float>(chunks > 1 ? state_floats(states, num_heads, head_dim) : int64_t{0});
  }
  backward_scratch(workspace, rows, num_heads, head_dim);
  return workspace.peak();
}

}  // namespace tailrace::cuda
