// The meaning of each op, in plain loops with double sums: the oracle of the parity tests.
//
// The functions have the arguments of the contracts in kernels/ops less stream and workspace, and
// take weights unpacked. They are slow on purpose and are never bent to agree with a fast version.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/view.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/router.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/swiglu.h"

namespace tailrace::ref {

void linear(ConstMatrix x, ConstMatrix weight, std::span<const float> bias, Matrix y);
void linear_grad_input(ConstMatrix dy, ConstMatrix weight, Matrix dx, bool accumulate);
void linear_grad_weight(ConstMatrix dy, ConstMatrix x, Matrix dweight);
void linear_grad_bias(ConstMatrix dy, std::span<float> dbias);

void rms_norm(ConstMatrix x, std::span<const float> weight, float eps, Matrix y,
              std::span<float> inv_rms);
void rms_norm_backward(ConstMatrix x, std::span<const float> weight, std::span<const float> inv_rms,
                       ConstMatrix dy, Matrix dx, bool accumulate, std::span<float> dweight);

void rope(Matrix x, int num_heads, std::span<const int32_t> positions,
          std::span<const double> inv_freq, bool inverse);

void swiglu(ConstMatrix gate, ConstMatrix up, Matrix y,
            GateActivation activation = GateActivation::kSilu);
void swiglu_backward(ConstMatrix gate, ConstMatrix up, ConstMatrix dy, Matrix dgate, Matrix dup,
                     GateActivation activation = GateActivation::kSilu);

void embedding(ConstMatrix table, std::span<const int32_t> ids, Matrix y, float scale = 1);
void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, Matrix dtable,
                        float scale = 1);

void route(const Route& args);
void route_backward(const RouteBackward& args);
// By walking all choices for each expert.
void group_by_expert(const ExpertGroups& args);
void expert_balance(const ExpertBalance& args);

// weights.first is not read: `master` has the weights of all experts.
void grouped_linear(const GroupedLinear& args, MatrixStack<const float> master);
void grouped_grad_input(const GroupedGradInput& args, MatrixStack<const float> master);
void grouped_grad_weight(const GroupedGradWeight& args);
void weighted_sum(const WeightedSum& args);
void weight_backward(const WeightBackward& args);

void kv_write(ConstMatrix k, ConstMatrix v, const AttentionBatch& batch, const KvLayer& kv);
void kv_copy(const KvCopy& args);
void attention(ConstMatrix q, const AttentionHeads& args, const AttentionBatch& batch,
               const KvLayer& kv, Matrix out, Matrix lse);
// Recomputes the probabilities itself: it needs neither `out` nor `lse`.
void attention_backward(ConstMatrix q, ConstMatrix dout, const AttentionHeads& args,
                        const AttentionBatch& batch, const KvLayer& kv, Matrix dq, Matrix dk,
                        Matrix dv);

void log_sum_exp(ConstMatrix logits, float inv_temperature, std::span<float> lse,
                 std::span<float> entropy);
void kept_log_sum_exp(ConstMatrix logits, const KeptSets& kept, float inv_temperature,
                      std::span<float> kept_lse);
// head.weight and gradient.lse are not read.
void linear_logprob(const LogprobHead& head, ConstMatrix weight, const LogprobRows& out);
void linear_logprob_backward(const LogprobHead& head, ConstMatrix weight,
                             const LogprobGradient& gradient);

// Draws in order of id.
void sample(const SampleTokens& args);

void begin_update(const BeginUpdate& args);
void adamw(const AdamW& args);
void muon(const Muon& args);
double sum_of_squares(std::span<const float> x);

}  // namespace tailrace::ref
