// The public names of the ops: each runs on the backend of its stream's device.
//
// A second backend becomes a second function pointer of run(), so that an op that lacks it does not
// compile; sizes become the larger of the two.
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/isa.h"
#include "kernels/cpu/isa_paths.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/swiglu.h"

namespace tailrace {
namespace {

// The arguments are views and numbers: passing them by value again costs nothing.
// type_identity keeps the arguments out of the deduction: the op's own signature decides, and a
// Matrix converts to a ConstMatrix as in a plain call.
template <class R, class... Parameters>
R run(R (*const (&cpu)[3])(const Stream&, Parameters...), const Stream& stream,
      std::type_identity_t<Parameters>... arguments) {
  TR_CHECK(stream.device.kind == DeviceKind::kCpu, "this build has no ops for a GPU");
  return cpu[static_cast<size_t>(isa())](stream, arguments...);
}

// What needs no stream: sizes.
template <class R, class... Parameters>
R ask(R (*const (&cpu)[3])(Parameters...), std::type_identity_t<Parameters>... arguments) {
  return cpu[static_cast<size_t>(isa())](arguments...);
}

// An op in the order of Isa.
#if defined(__x86_64__)
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::avx2::op, cpu::avx512::op }
#else
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::portable::op, cpu::portable::op }
#endif

}  // namespace

size_t weight_bytes(Dtype dtype, int64_t out, int64_t in) {
  return ask(TR_PATHS(weight_bytes), dtype, out, in);
}
Weight pack_weight(const Stream& stream, ConstMatrix master, Dtype dtype,
                   std::span<std::byte> memory) {
  return run(TR_PATHS(pack_weight), stream, master, dtype, memory);
}
void linear(const Stream& stream, ConstMatrix x, const Weight& weight, std::span<const float> bias,
            Matrix y) {
  run(TR_PATHS(linear), stream, x, weight, bias, y);
}
void linear_grad_input(const Stream& stream, Workspace& workspace, ConstMatrix dy,
                       const Weight& weight, Matrix dx, bool accumulate) {
  run(TR_PATHS(linear_grad_input), stream, workspace, dy, weight, dx, accumulate);
}
void linear_grad_weight(const Stream& stream, Workspace& workspace, ConstMatrix dy, ConstMatrix x,
                        Matrix dweight) {
  run(TR_PATHS(linear_grad_weight), stream, workspace, dy, x, dweight);
}
void linear_grad_bias(const Stream& stream, ConstMatrix dy, std::span<float> dbias) {
  run(TR_PATHS(linear_grad_bias), stream, dy, dbias);
}
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in) {
  return ask(TR_PATHS(linear_grad_workspace_bytes), tokens, out, in);
}

void rms_norm(const Stream& stream, ConstMatrix x, std::span<const float> weight, float eps,
              Matrix y, std::span<float> inv_rms) {
  run(TR_PATHS(rms_norm), stream, x, weight, eps, y, inv_rms);
}
void rms_norm_backward(const Stream& stream, ConstMatrix x, std::span<const float> weight,
                       std::span<const float> inv_rms, ConstMatrix dy, Matrix dx, bool accumulate,
                       std::span<float> dweight) {
  run(TR_PATHS(rms_norm_backward), stream, x, weight, inv_rms, dy, dx, accumulate, dweight);
}

void rope_table(const Stream& stream, std::span<const double> inv_freq, double scale,
                Matrix table) {
  run(TR_PATHS(rope_table), stream, inv_freq, scale, table);
}
void rope(const Stream& stream, Matrix x, int num_heads, std::span<const int32_t> positions,
          ConstMatrix table, bool inverse) {
  run(TR_PATHS(rope), stream, x, num_heads, positions, table, inverse);
}

void swiglu(const Stream& stream, ConstMatrix gate, ConstMatrix up, Matrix y) {
  run(TR_PATHS(swiglu), stream, gate, up, y);
}
void swiglu_backward(const Stream& stream, ConstMatrix gate, ConstMatrix up, ConstMatrix dy,
                     Matrix dgate, Matrix dup) {
  run(TR_PATHS(swiglu_backward), stream, gate, up, dy, dgate, dup);
}

void embedding(const Stream& stream, const Weight& table, std::span<const int32_t> ids, Matrix y) {
  run(TR_PATHS(embedding), stream, table, ids, y);
}
void embedding_backward(const Stream& stream, std::span<const int32_t> ids, ConstMatrix dy,
                        Matrix dtable) {
  run(TR_PATHS(embedding_backward), stream, ids, dy, dtable);
}
void gather_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y) {
  run(TR_PATHS(gather_rows), stream, x, rows, y);
}
void scatter_rows(const Stream& stream, ConstMatrix x, std::span<const int32_t> rows, Matrix y) {
  run(TR_PATHS(scatter_rows), stream, x, rows, y);
}
void add(const Stream& stream, ConstMatrix x, Matrix y) { run(TR_PATHS(add), stream, x, y); }

void kv_write(const Stream& stream, ConstMatrix k, ConstMatrix v, const AttentionBatch& batch,
              const KvLayer& kv) {
  run(TR_PATHS(kv_write), stream, k, v, batch, kv);
}
void attention(const Stream& stream, Workspace& workspace, ConstMatrix q, const AttentionArgs& args,
               const AttentionBatch& batch, const KvLayer& kv, int max_context, Matrix out,
               Matrix lse) {
  run(TR_PATHS(attention), stream, workspace, q, args, batch, kv, max_context, out, lse);
}
void attention_backward(const Stream& stream, Workspace& workspace, ConstMatrix q, ConstMatrix out,
                        ConstMatrix lse, ConstMatrix dout, const AttentionArgs& args,
                        const AttentionBatch& batch, const KvLayer& kv, int max_context, Matrix dq,
                        Matrix dk, Matrix dv) {
  run(TR_PATHS(attention_backward), stream, workspace, q, out, lse, dout, args, batch, kv,
      max_context, dq, dk, dv);
}
size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context) {
  return ask(TR_PATHS(attention_workspace_bytes), num_threads, num_heads, num_kv_heads, head_dim,
             max_context);
}

void log_sum_exp(const Stream& stream, ConstMatrix logits, float inv_temperature,
                 std::span<float> lse, std::span<float> entropy) {
  run(TR_PATHS(log_sum_exp), stream, logits, inv_temperature, lse, entropy);
}
void softmax_weights(const Stream& stream, std::span<const float> logits, float inv_temperature,
                     std::span<float> weights) {
  run(TR_PATHS(softmax_weights), stream, logits, inv_temperature, weights);
}
void kept_log_sum_exp(const Stream& stream, ConstMatrix logits, KeptSets kept,
                      float inv_temperature, std::span<float> kept_lse) {
  run(TR_PATHS(kept_log_sum_exp), stream, logits, kept, inv_temperature, kept_lse);
}
void linear_logprob(const Stream& stream, Workspace& workspace, const LogprobHead& head,
                    const LogprobRows& out) {
  run(TR_PATHS(linear_logprob), stream, workspace, head, out);
}
void linear_logprob_backward(const Stream& stream, Workspace& workspace, const LogprobHead& head,
                             const LogprobGradient& gradient) {
  run(TR_PATHS(linear_logprob_backward), stream, workspace, head, gradient);
}
size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim) {
  return ask(TR_PATHS(linear_logprob_workspace_bytes), rows, vocab, dim);
}

void adamw(const Stream& stream, const AdamWStep& step, std::span<float> parameters,
           std::span<const float> gradients, std::span<float> m, std::span<float> v) {
  run(TR_PATHS(adamw), stream, step, parameters, gradients, m, v);
}
double sum_of_squares(const Stream& stream, std::span<const float> x) {
  return run(TR_PATHS(sum_of_squares), stream, x);
}

}  // namespace tailrace
