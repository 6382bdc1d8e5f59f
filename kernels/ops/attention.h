// Causal grouped-query attention over a paged KV cache: one op for prefill, decode and training.
//
// For a query at absolute position p: the scores of positions 0..p, or of the window that ends
// there, their softmax, and the weighted sum of V. The order of each sum is one of absolute
// positions. Nothing depends on how the queries were batched, on how prefill was cut, or on
// block_tokens. On the CPU: a score is one sum over head_dim in order; the sum of exp runs in 16
// interleaved lanes (lane = position mod 16) joined in a fixed tree, that of V over positions in
// order. On a GPU: kernels/cuda/attention.cuh.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

constexpr int kMaxHeadDim = 256;

// The heads of a layer, and the context that they see.
struct AttentionHeads {
  int num_heads = 0;
  float scale = 1;  // of the scores
  // Positions that a query sees, the last of which is its own; 0: all up to its own. What lies
  // before costs nothing, and KV blocks that lie there wholly may be missing.
  int window = 0;

  int64_t first_seen(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// The cache of one layer, head_dim <= kMaxHeadDim. A block holds `block_tokens` (a power of
// two, 8..128) consecutive positions.
//   keys    [blocks, kv_heads, head_dim, block_tokens] on the CPU, where scores vectorise over
//           positions; [blocks, kv_heads, block_tokens, head_dim] on a GPU
//   values  [blocks, kv_heads, block_tokens, head_dim]
struct KvLayer {
  void* keys = nullptr;
  void* values = nullptr;
  int block_tokens = 0, num_kv_heads = 0, head_dim = 0;
  // float32 or bfloat16. What is written is rounded to it; the sums over what is read are of
  // float32 and in the same order for both, on the CPU.
  Dtype dtype = Dtype::kF32;
  Device device = {};

  float* host_keys() const { return keys_on<float>({}); }
  float* host_values() const { return values_on<float>({}); }
  // For code that runs on `where`.
  template <class T>
  T* keys_on(Device where) const {
    return check<T>(where), static_cast<T*>(keys);
  }
  template <class T>
  T* values_on(Device where) const {
    return check<T>(where), static_cast<T*>(values);
  }

 private:
  template <class T>
  void check(Device where) const {
    TR_CHECK(device == where && dtype == dtype_of<T>(), "a cache of device {}, dtype {}",
             device.index, static_cast<int>(dtype));
  }
};

// Which rows of a batch belong to which sequence, and where each sequence keeps its KV.
struct AttentionBatch {
  // [tokens] absolute position of a row in its sequence
  std::span<const int32_t> positions;
  // [sequences + 1] first row of each sequence; rows of one sequence are consecutive positions
  std::span<const int32_t> seq_offsets;
  // [sequences, max_blocks] block ids; unused entries are -1
  std::span<const int32_t> block_tables;
  int max_blocks = 0;
  // [sequences] where a sequence begins behind position 0: the one, before it in the batch, whose
  // rows are the positions in front, down to where that one begins in turn; -1: it begins at 0.
  // Empty: all do. Only backward reads it.
  std::span<const int32_t> parents = {};
  // [sequences] how many of its first blocks are those of the sequence before it, too; 0 for the
  // first. Empty: none are. On the CPU alone: sequences of a row each then read them once together.
  std::span<const int32_t> common_blocks = {};

  int64_t num_tokens() const { return static_cast<int64_t>(positions.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(seq_offsets.size()) - 1; }
};

// Stores k, v [tokens, kv_heads * head_dim] at each row's position.
struct KvWrite {
  ConstMatrix k, v;
  AttentionBatch batch;
  KvLayer kv;
};
void kv_write(const Stream& stream, const KvWrite& args);

// The inputs of attention, from the product of a layer: queries and keys normalised by head
// (RmsNorm, where there are weights), then turned by the angles of their positions (Rope), into
// `qk`; keys and values into the cache (KvWrite).
//
//   qkv    [tokens, (heads + 2 kv_heads) * head_dim] q, then k, then v
//   q_norm, k_norm  [head_dim], or both empty
//   table  [positions, head_dim] float32
//   qk     [tokens, (heads + kv_heads) * head_dim]; may be those columns of qkv without norms
struct CacheQkv {
  ConstTensor qkv;
  int num_heads = 0;
  std::span<const float> q_norm = {}, k_norm = {};
  float eps = 0;
  ConstTensor table;
  AttentionBatch batch;
  KvLayer kv;
  Tensor qk;
};
void cache_qkv(const Stream& stream, const CacheQkv& args);

// The first `tokens` positions of block `from`, keys and values, to block `to`, another one.
struct KvCopy {
  KvLayer kv;
  int from = 0, to = 0, tokens = 0;
};
void kv_copy(const Stream& stream, const KvCopy& args);

// out[t] = softmax(scale * q[t] . K[f..p]) V[f..p] per head, f = first_seen(p); with g = heads /
// kv_heads, head h reads kv head h / g.
//
//   q, out  [tokens, heads * head_dim]; out may be q
//   lse     [tokens, heads] log of the sum of exp(scaled scores), for backward; null data: not
//   wanted
// `max_context`: largest position + 1 in the batch, or any number above.
struct Attention {
  ConstTensor q;
  AttentionHeads heads;
  AttentionBatch batch;
  KvLayer kv;
  int max_context = 0;
  Tensor out, lse = {};
};
void attention(const Stream& stream, Workspace& workspace, const Attention& args);

// Gradient of the above when every sequence of the batch is whole: all of its K and V are rows of
// this batch, its own (positions 0..n-1) or those of the sequences that it goes on from
// (AttentionBatch::parents, on the CPU). Rows that several sequences go on from get the sum of what
// each gives, in the order of the batch. q and out are operands, dq, dk, dv, dout and lse float32.
// Overwrites dq [tokens, heads * head_dim] and dk, dv
// [tokens, kv_heads * head_dim]. dq may be dout.
struct AttentionBackward {
  ConstTensor q, out, lse, dout;
  AttentionHeads heads;
  AttentionBatch batch;
  KvLayer kv;
  int max_context = 0;
  Tensor dq, dk, dv;
};
void attention_backward(const Stream& stream, Workspace& workspace, const AttentionBackward& args);

// Enough for forward and backward with up to `num_threads` threads; on a GPU, where they do not
// count, with up to `rows` rows.
size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context, int64_t rows = 0, Device device = {});

}  // namespace tailrace
