// The ops on the CPU: vectorised, threaded over stream.pool. Their contracts are in kernels/ops,
// whose names dispatch.cc forwards here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace::cpu {

size_t weight_bytes(Dtype dtype, int64_t out, int64_t in);
Weight pack_weight(const Stream& stream, ConstMatrix master, Dtype dtype,
                   std::span<std::byte> memory);
void linear(const Stream& stream, ConstMatrix x, const Weight& weight, std::span<const float> bias,
            Matrix y);
void linear_grad_input(const Stream& stream, Workspace& workspace, ConstMatrix dy,
                       const Weight& weight, Matrix dx, bool accumulate);
void linear_grad_weight(const Stream& stream, Workspace& workspace, ConstMatrix dy, ConstMatrix x,
                        Matrix dweight);
void linear_grad_bias(const Stream& stream, ConstMatrix dy, std::span<float> dbias);
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in);

void rms_norm(const Stream& stream, ConstMatrix x, std::span<const float> weight, float eps,
              Matrix y, std::span<float> inv_rms);
void rms_norm_backward(const Stream& stream, ConstMatrix x, std::span<const float> weight,
                       std::span<const float> inv_rms, ConstMatrix dy, Matrix dx, bool accumulate,
                       std::span<float> dweight);

void rope_table(const Stream& stream, std::span<const double> inv_freq, double scale, Matrix table);
void rope(const Stream& stream, Matrix x, int num_heads, std::span<const int32_t> positions,
          ConstMatrix table, bool inverse);

void swiglu(const Stream& stream, ConstMatrix gate, ConstMatrix up, Matrix y);
void swiglu_backward(const Stream& stream, ConstMatrix gate, ConstMatrix up, ConstMatrix dy,
                     Matrix dgate, Matrix dup);

void embedding(const Stream& stream, const Weight& table, std::span<const int32_t> ids, Matrix y);
void embedding_backward(const Stream& stream, std::span<const int32_t> ids, ConstMatrix dy,
                        Matrix dtable);
void gather_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y);
void scatter_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y);
void add(const Stream& stream, ConstMatrix x, Matrix y);

void kv_write(const Stream& stream, ConstMatrix k, ConstMatrix v, const AttentionBatch& batch,
              const KvLayer& kv);
void attention(const Stream& stream, Workspace& workspace, ConstMatrix q, const AttentionArgs& args,
               const AttentionBatch& batch, const KvLayer& kv, int max_context, Matrix out,
               Matrix lse);
void attention_backward(const Stream& stream, Workspace& workspace, ConstMatrix q, ConstMatrix out,
                        ConstMatrix lse, ConstMatrix dout, const AttentionArgs& args,
                        const AttentionBatch& batch, const KvLayer& kv, int max_context, Matrix dq,
                        Matrix dk, Matrix dv);
size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context);

void log_sum_exp(const Stream& stream, ConstMatrix logits, float inv_temperature,
                 std::span<float> lse, std::span<float> entropy);
void kept_log_sum_exp(const Stream& stream, ConstMatrix logits, KeptSets kept,
                      float inv_temperature, std::span<float> kept_lse);
void linear_logprob(const Stream& stream, Workspace& workspace, const LogprobHead& head,
                    const LogprobRows& out);
void linear_logprob_backward(const Stream& stream, Workspace& workspace, const LogprobHead& head,
                             const LogprobGradient& gradient);
size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim);

void adamw(const Stream& stream, const AdamWStep& step, std::span<float> parameters,
           std::span<const float> gradients, std::span<float> m, std::span<float> v);
double sum_of_squares(const Stream& stream, std::span<const float> x);

}  // namespace tailrace::cpu
