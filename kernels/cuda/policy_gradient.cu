// The gradient of the policy loss, and of a cross entropy.
//
// Order of sums, in double: a block has a sequence, and of its tokens a thread has those whose
// number in the sequence is its own modulo kLossThreads. It adds them in ascending order; then a
// tree over each warp, and the warps in order. A second launch adds the sequences in order. A cross
// entropy has one block, as if all tokens were one sequence.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gpu_ops.h"

namespace tailrace::cuda {
namespace {

constexpr int kLossThreads = 128, kLossWarps = kLossThreads / 32;
static_assert((kLossThreads & (kLossThreads - 1)) == 0);
constexpr int kAddedSums = kNumPolicySums - kNumPolicyExtremes;
static_assert(kNumPolicySums <= 32);

__device__ __forceinline__ double double_sum_of_warp(double x) {
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}

// The sum over the block's threads, in all of them; `shared` [kLossWarps].
__device__ __forceinline__ double sum_of_all(double x, double* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  x = double_sum_of_warp(x);
  if (thread % 32 == 0) shared[thread / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kLossWarps; ++warp) sum += shared[warp];
  __syncthreads();  // before somebody writes there again
  return sum;
}

// Pointers of PolicyTokens; null: an empty column.
struct LossColumns {
  const float *logprob, *entropy, *old_logprob, *behaviour, *kl_logprob, *recorded, *advantage;
  const double *weight, *correction;
  const uint8_t* flags;
  const int32_t *turns, *sequence_turns;
  float *dlogprob, *dentropy;
  int begin;  // of the sequence

  // The first token from `from` on that is this thread's; the next ones are kLossThreads apart. It
  // alone writes to their gradients.
  __device__ int first_of_thread(int from) const {
    return from + ((static_cast<int>(threadIdx.x) - (from - begin)) & (kLossThreads - 1));
  }
  __device__ bool is_trained(int t) const { return (flags[t] & kTrainedToken) != 0; }
  __device__ bool is_positive(int t) const { return (flags[t] & kPositiveToken) != 0; }
  __device__ double log_ratio(int t) const { return double{logprob[t]} - double{old_logprob[t]}; }
  __device__ double log_importance(int t) const {
    return double{logprob[t]} - double{behaviour[t]};
  }
};

// The values that the tokens of a unit share.
struct LossUnit {
  double log_ratio, log_importance;
  bool cut;
};

__device__ __forceinline__ LossUnit make_unit(const PolicyRule& rule, double log_ratio,
                                              double log_importance, bool counts,
                                              PolicySums& sums) {
  const ClampedLog r = clamp_log(log_ratio);
  const double ratio = exp(r.value);
  LossUnit unit = {r.value, 0, r.cut};
  const ClampedLog u = clamp_log(log_importance);
  if (weighs_behaviour(rule.surrogate.kind)) unit.log_importance = u.value;
  if (!counts) return unit;
  sums.clamped += r.cut;
  if (weighs_behaviour(rule.surrogate.kind)) sums.clamped += u.cut;
  sums.ratio_min = ratio < sums.ratio_min ? ratio : sums.ratio_min;
  sums.ratio_max = sums.ratio_max < ratio ? ratio : sums.ratio_max;
  return unit;
}

// Adds a trained token. Its own gradient is in dlogprob then; returns what it adds to the
// derivative through the unit's ratio.
__device__ __forceinline__ double surrogate_token(const LossColumns& columns,
                                                  const PolicyRule& rule, const LossUnit& unit,
                                                  bool masks_failures, int t, PolicySums& sums) {
  SurrogateInput in;
  in.log_ratio = unit.log_ratio;
  in.log_importance = unit.log_importance;
  in.logprob = double{columns.logprob[t]};
  in.drift = columns.log_ratio(t);
  in.advantage = double{columns.advantage[t]};
  in.positive = splits_by_reward(rule.surrogate.kind) && columns.is_positive(t);
  const SurrogateTerm term = surrogate(rule.surrogate, in);
  double correction = columns.correction[t];
  if (masks_failures && in.advantage < 0) {
    correction = 0;
    sums.sequence_masked += 1;
  }
  const double scale = columns.weight[t] * correction;
  sums.policy_term += scale * term.value;
  sums.clipped_low += term.clipped_low;
  sums.clipped_high += term.clipped_high;
  sums.dual_clipped += term.dual_clipped;
  // s_t = sg(s) exp(l_t - sg(l_t)): the value of all, and each token's own gradient.
  const bool own = rule.ratio == RatioUnit::kSequenceToken;
  const double d_own = own && !unit.cut ? scale * term.d_log_ratio : 0;
  columns.dlogprob[t] = static_cast<float>(scale * term.d_logprob + d_own);
  return own ? 0 : scale * term.d_log_ratio;
}

__device__ __forceinline__ void regularise_token(const LossColumns& columns, const PolicyRule& rule,
                                                 int t, PolicySums& sums) {
  const double l = double{columns.logprob[t]}, weight = columns.weight[t];
  const double drift = double{columns.old_logprob[t]} - l;
  sums.tokens += 1;
  sums.old_minus_new += drift;
  sums.drift_k3 += kl_term(KlEstimator::kK3, clamp_log(drift).value).value;
  if (columns.kl_logprob != nullptr) {
    const ClampedLog x = clamp_log(l - double{columns.kl_logprob[t]});
    KlTerm term = kl_term(rule.kl_estimator, x.value);
    if (rule.kl_unbiased) term = times_ratio(term, columns.log_ratio(t));
    sums.kl_term += weight * term.value;
    sums.clamped += x.cut;
    if (!x.cut && rule.kl_coef != 0)
      columns.dlogprob[t] += static_cast<float>(weight * rule.kl_coef * term.d_logprob);
  }
  const double entropy = double{columns.entropy[t]};
  sums.entropy_term += weight * entropy;
  sums.entropy += entropy;
  // A bonus: the loss falls when the entropy rises.
  if (columns.dentropy != nullptr)
    columns.dentropy[t] = static_cast<float>(-weight * rule.entropy_coef);
}

// The tokens [begin, end), which share one ratio.
__device__ __forceinline__ void run_unit(const LossColumns& columns, const PolicyRule& rule,
                                         bool masks_failures, int begin, int end, PolicySums& sums,
                                         double* shared) {
  double log_ratio = 0, log_importance = 0, count = 0;
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads) {
    if (!columns.is_trained(t)) continue;
    log_ratio += columns.log_ratio(t);
    log_importance += columns.log_importance(t);
    count += 1;
  }
  const double size = sum_of_all(count, shared);
  if (size == 0) return;
  log_ratio = sum_of_all(log_ratio, shared) / size;
  log_importance = sum_of_all(log_importance, shared);
  const LossUnit unit = make_unit(rule, log_ratio, log_importance, threadIdx.x == 0, sums);
  double d_log_ratio = 0;
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads)
    if (columns.is_trained(t))
      d_log_ratio += surrogate_token(columns, rule, unit, masks_failures, t, sums);
  // The clamp is flat there.
  if (unit.cut) return;
  // The unit's ratio depends on each of its tokens by 1 / size: all of them get the whole unit's
  // derivative.
  const auto share = static_cast<float>(sum_of_all(d_log_ratio, shared) / size);
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads)
    if (columns.is_trained(t)) columns.dlogprob[t] += share;
}

// The tokens [begin, end) of a turn. No correction weighs them: they are demonstrations, whoever
// wrote them.
__device__ __forceinline__ void imitate(const LossColumns& columns, const PolicyRule& rule,
                                        int begin, int end, PolicySums& sums, double* shared) {
  double sum = 0, count = 0;
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads) {
    if (!columns.is_trained(t)) continue;
    sum += double{columns.logprob[t]};
    count += 1;
  }
  const double size = sum_of_all(count, shared);
  if (size == 0) return;
  sum = sum_of_all(sum, shared);
  const double probability =
      turn_probability(rule.imitation_level, sum, static_cast<int64_t>(size));
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads) {
    const double advantage = double{columns.advantage[t]};
    if (!columns.is_trained(t) || !columns.is_positive(t) || advantage <= 0) continue;
    const double weight = columns.weight[t] * probability * advantage;
    sums.imitation_term -= weight * double{columns.logprob[t]};
    columns.dlogprob[t] -= static_cast<float>(rule.imitation_coef * weight);
  }
}

// Whether its failures are masked: the policy no longer writes them.
__device__ __forceinline__ bool masks_sequence(const LossColumns& columns, const PolicyRule& rule,
                                               int begin, int end, double* shared) {
  if (rule.sequence_mask == 0) return false;
  double sum = 0, count = 0;
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads) {
    if (!columns.is_trained(t)) continue;
    sum -= columns.log_importance(t);
    count += 1;
  }
  sum = sum_of_all(sum, shared);
  count = sum_of_all(count, shared);
  return count > 0 && sum / count > rule.sequence_mask;
}

__device__ __forceinline__ double joined(int index, double a, double b) {
  if (index < kAddedSums) return a + b;
  if (index == kNumPolicySums - 1) return b < a ? b : a;
  return a < b ? b : a;
}

// Gradients that no term writes, and how far the weights that are current have moved.
__device__ __forceinline__ void begin_token(const LossColumns& columns, int t, PolicySums& sums) {
  if ((columns.flags[t] & kCurrentToken) != 0) {
    const double apart = fabs(double{columns.logprob[t]} - double{columns.recorded[t]});
    sums.current_tokens += 1;
    sums.mismatch_abs += apart;
    sums.mismatch_abs_max = sums.mismatch_abs_max < apart ? apart : sums.mismatch_abs_max;
  }
  if (columns.is_trained(t)) return;
  columns.dlogprob[t] = 0;
  if (columns.dentropy != nullptr) columns.dentropy[t] = 0;
}

// Joins the sums of the block's threads; `shared` [kLossWarps].
__device__ __forceinline__ void join_threads(const PolicySums& sums,
                                             double (*shared)[kNumPolicySums], double* result) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto* const own = reinterpret_cast<const double*>(&sums);
#pragma unroll
  for (int i = 0; i < kNumPolicySums; ++i) {
    double x = own[i];
    for (int bits = 16; bits > 0; bits /= 2) x = joined(i, x, __shfl_xor_sync(~0u, x, bits));
    if (thread % 32 == 0) shared[thread / 32][i] = x;
  }
  __syncthreads();
  if (thread >= kNumPolicySums) return;
  double x = shared[0][thread];
  for (int warp = 1; warp < kLossWarps; ++warp) x = joined(thread, x, shared[warp][thread]);
  result[thread] = x;
}

// Grid: sequences.
__global__ void __launch_bounds__(kLossThreads)
    policy_gradient_kernel(LossColumns columns, PolicyRule rule, PolicySums* results) {
  __shared__ double shared[kLossWarps];
  __shared__ double of_warps[kLossWarps][kNumPolicySums];
  const int first_turn = columns.sequence_turns[blockIdx.x];
  const int last_turn = columns.sequence_turns[blockIdx.x + 1];
  const int begin = columns.turns[first_turn], end = columns.turns[last_turn];
  columns.begin = begin;
  PolicySums sums;
  const bool masks = masks_sequence(columns, rule, begin, end, shared);
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads) {
    begin_token(columns, t, sums);
    if (rule.ratio != RatioUnit::kToken || !columns.is_trained(t)) continue;
    const LossUnit unit =
        make_unit(rule, columns.log_ratio(t), columns.log_importance(t), true, sums);
    const double d_log_ratio = surrogate_token(columns, rule, unit, masks, t, sums);
    if (!unit.cut) columns.dlogprob[t] += static_cast<float>(d_log_ratio);
  }
  if (rule.ratio == RatioUnit::kTurn) {
    for (int turn = first_turn; turn < last_turn; ++turn)
      run_unit(columns, rule, masks, columns.turns[turn], columns.turns[turn + 1], sums, shared);
  } else if (rule.ratio != RatioUnit::kToken) {
    run_unit(columns, rule, masks, begin, end, sums, shared);
  }
  for (int t = columns.first_of_thread(begin); t < end; t += kLossThreads)
    if (columns.is_trained(t)) regularise_token(columns, rule, t, sums);
  if (rule.imitation_coef != 0)
    for (int turn = first_turn; turn < last_turn; ++turn)
      imitate(columns, rule, columns.turns[turn], columns.turns[turn + 1], sums, shared);
  join_threads(sums, of_warps, reinterpret_cast<double*>(results + blockIdx.x));
}

// One block; a thread has one of the sums.
__global__ void __launch_bounds__(32)
    join_sequences_kernel(const double* sequences, int count, double* total) {
  const int index = static_cast<int>(threadIdx.x);
  if (index >= kNumPolicySums) return;
  double x = total[index];
  for (int i = 0; i < count; ++i) x = joined(index, x, sequences[i * kNumPolicySums + index]);
  total[index] = x;
}

__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_kernel(const float* logprob, int count, float gradient, float* dlogprob,
                         double* total) {
  __shared__ double shared[kLossWarps];
  double sum = 0;
  for (int t = static_cast<int>(threadIdx.x); t < count; t += kLossThreads) {
    sum -= double{logprob[t]};
    dlogprob[t] = gradient;
  }
  sum = sum_of_all(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

template <class T>
auto* column(std::span<T> values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

void policy_gradient(const Stream& stream, const PolicyGradient& args) {
  const PolicyTokens& in = args.tokens;
  const size_t n = in.logprob.size();
  TR_CHECK(in.entropy.size() == n && in.old_logprob.size() == n && in.recorded.size() == n &&
               in.behaviour_logprob.size() == n && in.advantage.size() == n &&
               in.weight.size() == n && in.correction.size() == n && in.flags.size() == n &&
               args.dlogprob.size() == n && n < size_t{1} << 30,
           "{} tokens", n);
  TR_CHECK(in.kl_logprob.size() == n || in.kl_logprob.empty(), "kl {}", in.kl_logprob.size());
  TR_CHECK(args.dentropy.size() == n || (args.dentropy.empty() && args.rule.entropy_coef == 0),
           "dentropy {}", args.dentropy.size());
  TR_CHECK(in.sequence_turns.size() >= 2 && in.turns.size() >= 2 && args.sums.size() == 1, "{}",
           in.sequence_turns.size());
  const size_t sequences = in.sequence_turns.size() - 1;
  TR_CHECK(args.scratch.size() >= sequences, "scratch {}", args.scratch.size());
  const LossColumns columns = {.logprob = in.logprob.data(),
                               .entropy = in.entropy.data(),
                               .old_logprob = in.old_logprob.data(),
                               .behaviour = in.behaviour_logprob.data(),
                               .kl_logprob = column(in.kl_logprob),
                               .recorded = in.recorded.data(),
                               .advantage = in.advantage.data(),
                               .weight = in.weight.data(),
                               .correction = in.correction.data(),
                               .flags = in.flags.data(),
                               .turns = in.turns.data(),
                               .sequence_turns = in.sequence_turns.data(),
                               .dlogprob = args.dlogprob.data(),
                               .dentropy = column(args.dentropy),
                               .begin = 0};
  launch(policy_gradient_kernel, dim3(static_cast<unsigned>(sequences)), dim3(kLossThreads), 0,
         stream, columns, args.rule, args.scratch.data());
  launch(join_sequences_kernel, dim3(1), dim3(32), 0, stream,
         reinterpret_cast<const double*>(args.scratch.data()), static_cast<int>(sequences),
         reinterpret_cast<double*>(args.sums.data()));
}

void cross_entropy(const Stream& stream, const CrossEntropy& args) {
  TR_CHECK(args.dlogprob.size() == args.logprob.size() && args.sum.size() == 1 &&
               args.logprob.size() < size_t{1} << 30,
           "{} tokens, {} gradients", args.logprob.size(), args.dlogprob.size());
  launch(cross_entropy_kernel, dim3(1), dim3(kLossThreads), 0, stream, args.logprob.data(),
         static_cast<int>(args.logprob.size()), static_cast<float>(-args.weight),
         args.dlogprob.data(), args.sum.data());
}

}  // namespace tailrace::cuda
