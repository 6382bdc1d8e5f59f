#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/cases.h"
#include "kernels/ref/ref.h"

namespace tailrace {

void bench_attention(KernelHarness& bench, const AttentionShape& shape) {
  const auto [sequences, context, queries, heads, kv_heads, head_dim, window, shared, cache] =
      shape;
  std::string name = fmt::format("attention {} x {} of {}, {}/{} heads of {}", sequences, queries,
                                 context, heads, kv_heads, head_dim);
  if (window > 0) name += fmt::format(", window {}", window);
  if (shared > 0) name += fmt::format(", {} shared by 8", shared);
  if (cache == Dtype::kBF16) name += ", a cache of bf16";
  if (!bench.wants(name)) return;
  constexpr int kBlockTokens = 16;
  const int blocks = (context + kBlockTokens - 1) / kBlockTokens;
  const int64_t rows = sequences * queries, all = sequences * context;
  const int64_t q_size = heads * head_dim, kv_size = kv_heads * head_dim;
  std::mt19937 rng(2);
  RandomMatrix q(rows, q_size, rng), out(rows, q_size, rng), dout(rows, q_size, rng),
      lse(rows, heads, rng), dq(rows, q_size, rng);
  RandomMatrix k(all, kv_size, rng), v(all, kv_size, rng), dk(rows, kv_size, rng),
      dv(rows, kv_size, rng);
  RandomMatrix keys(sequences * blocks, kv_size * kBlockTokens, rng),
      values(sequences * blocks, kv_size * kBlockTokens, rng);
  // A cache of bfloat16 uses the first half of that memory, and what is written is of it already,
  // so that the reference needs to know nothing.
  const KvLayer kv{keys.view.data, values.view.data, kBlockTokens, kv_heads, head_dim, cache};
  if (cache == Dtype::kBF16) {
    for (float* matrix : {k.view.data, v.view.data})
      std::transform(matrix, matrix + all * kv_size, matrix,
                     [](float x) { return to_float(to_bf16(x)); });
  }

  std::vector<int32_t> positions, all_positions, offsets{0}, all_offsets{0}, tables, common;
  double scores = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    for (int p = 0; p < context; ++p) all_positions.push_back(p);
    for (int p = context - queries; p < context; ++p) {
      positions.push_back(p);
      scores += window > 0 ? std::min(window, p + 1) : p + 1;
    }
    offsets.push_back(static_cast<int32_t>(positions.size()));
    all_offsets.push_back(static_cast<int32_t>(all_positions.size()));
    const int64_t first = s / 8 * 8;
    common.push_back(s == first ? 0 : shared / kBlockTokens);
    for (int b = 0; b < blocks; ++b)
      tables.push_back(static_cast<int32_t>((b < common.back() ? first : s) * blocks + b));
    std::copy_n(k.view.row(first * context), shared * kv_size, k.view.row(s * context));
    std::copy_n(v.view.row(first * context), shared * kv_size, v.view.row(s * context));
  }
  const AttentionBatch whole{all_positions, all_offsets, tables, blocks};
  AttentionBatch batch{positions, offsets, tables, blocks};
  if (shared > 0) batch.common_blocks = common;
  const Stream& stream = bench.stream();
  Buffer scratch(
      attention_workspace_bytes(num_threads(stream), heads, kv_heads, head_dim, context));
  Workspace workspace(scratch);
  const AttentionHeads args{
      .num_heads = heads, .scale = 1 / std::sqrt(static_cast<float>(head_dim)), .window = window};
  // Two products a score, q . k and p v, of head_dim multiply-adds in each head.
  const double flops = 4.0 * scores * static_cast<double>(q_size);

  const auto write = [&] {
    kv_write(stream, {.k = k.view, .v = v.view, .batch = whole, .kv = kv});
  };
  const auto forward = [&] {
    attention(stream, workspace,
              {.q = q.view,
               .heads = args,
               .batch = batch,
               .kv = kv,
               .max_context = context,
               .out = out.view,
               .lse = lse.view});
  };
  const auto backward = [&] {
    attention_backward(stream, workspace,
                       {.q = q.view,
                        .out = out.view,
                        .lse = lse.view,
                        .dout = dout.view,
                        .heads = args,
                        .batch = batch,
                        .kv = kv,
                        .max_context = context,
                        .dq = dq.view,
                        .dk = dk.view,
                        .dv = dv.view});
  };

  // A wrong kv_write shows in the outputs: the reference reads what it has written itself.
  RandomMatrix ref_keys = RandomMatrix(sequences * blocks, kv_size * kBlockTokens, rng),
               ref_values = RandomMatrix(sequences * blocks, kv_size * kBlockTokens, rng);
  const KvLayer ref_kv{ref_keys.view.data, ref_values.view.data, kBlockTokens, kv_heads, head_dim};
  ref::kv_write(k.view, v.view, whole, ref_kv);
  RandomMatrix expected(rows, q_size, rng);
  write();
  forward();
  ref::attention(q.view, args, batch, ref_kv, expected.view, {});
  require_close(out.view, expected.view, context + head_dim, name);
  bench.products(name, "forward", flops, forward);
  // Gradients are of whole sequences only: the trainer never decodes.
  if (queries != context) return;

  RandomMatrix expected_dk(rows, kv_size, rng), expected_dv(rows, kv_size, rng);
  backward();
  ref::attention_backward(q.view, dout.view, args, batch, ref_kv, expected.view, expected_dk.view,
                          expected_dv.view);
  require_close(dq.view, expected.view, context + head_dim, name + ", dq");
  require_close(dk.view, expected_dk.view, context + head_dim, name + ", dk");
  require_close(dv.view, expected_dv.view, context + head_dim, name + ", dv");
  // Five products against the two of forward: scores again, dp, dq, dk, dv.
  bench.products(name, "gradients", 2.5 * flops, backward);
  // K and V are each read and written.
  bench.traffic(name, "kv_write",
                2.0 * static_cast<double>((sizeof(float) + size_of(cache)) * all * kv_size), write);
}

}  // namespace tailrace
