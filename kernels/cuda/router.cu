// The router of a sparse layer. A warp has a token, and lane l of it the experts l, l + 32, ...:
//
//   sum of exp, sum of p dp     a lane's experts in ascending order, then a tree over the warp
//   sums over the chosen        one after the other, in the order of their ids
//   expert_balance              double: the tokens of a sequence in their order, then the
//                               sequences in theirs; the bits of the CPU
//
// Nothing but the number of experts decides the first, so that a token has the same bits in any
// batch. Choices are compared as whole numbers that differ, and counts are whole numbers.
#include <limits>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/ops/router.h"

namespace tailrace::cuda {
namespace {

constexpr int kTokenThreads = 4 * kWarp;  // a warp a token
constexpr int kGroupWarps = 16;           // a block an expert
constexpr int kBalanceWarps = 16;         // a warp a sequence, of kWarp experts
constexpr float kLeastSum = std::numeric_limits<float>::min();

__device__ __forceinline__ int this_warp() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ __forceinline__ int64_t this_token() {
  return static_cast<int64_t>(blockIdx.x) * (kTokenThreads / kWarp) + this_warp();
}
dim3 blocks_of(int64_t tokens) {
  constexpr int64_t kTokens = kTokenThreads / kWarp;
  return dim3(static_cast<unsigned>((tokens + kTokens - 1) / kTokens));
}

__device__ __forceinline__ int sum_of_counts(int x) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}
// How many lanes before this one are in the set.
__device__ __forceinline__ int lanes_before(unsigned set) {
  return __popc(set & ((1u << this_lane()) - 1));
}

// Each lane has its own experts of the row before and after it, so both may be the same memory.
__device__ __forceinline__ void softmax(const float* logits, int experts, float* p) {
  float top = -INFINITY;
  for (int e = this_lane(); e < experts; e += kWarp) top = fmaxf(top, logits[e]);
  for (int bits = kWarp / 2; bits > 0; bits /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, bits));
  float sum = 0;
  for (int e = this_lane(); e < experts; e += kWarp) sum += p[e] = expf(logits[e] - top);
  sum = sum_of_warp(sum);
  for (int e = this_lane(); e < experts; e += kWarp) p[e] /= sum;
}

// Larger for a larger score, and of equal scores for the lower id: no two experts of a token have
// the same, and none has 0. NaN is below all numbers. A probability with a bias is never -0.
__device__ __forceinline__ uint64_t rank_of(const float* p, const float* bias, int expert) {
  const float score = bias == nullptr ? p[expert] : p[expert] + bias[expert];
  const uint32_t bits = __float_as_uint(score);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  const bool is_nan = score != score;
  return uint64_t{is_nan ? 0 : ordered} << 32 | (~uint32_t{0} - static_cast<uint32_t>(expert));
}

// The k experts of the highest ranks, ascending. A lane reads of p what it wrote itself.
__device__ __forceinline__ void choose(const float* p, const float* bias, int experts, int k,
                                       int32_t* chosen) {
  uint64_t least = ~uint64_t{0};  // of the ranks that are in
  for (int j = 0; j < k; ++j) {
    uint64_t next = 0;
    for (int e = this_lane(); e < experts; e += kWarp) {
      const uint64_t rank = rank_of(p, bias, e);
      if (rank < least && rank > next) next = rank;
    }
    for (int bits = kWarp / 2; bits > 0; bits /= 2)
      next = max(next, __shfl_xor_sync(~0u, next, bits));
    least = next;
  }
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + this_lane();
    const bool is_in = e < experts && rank_of(p, bias, e) >= least;
    const unsigned set = __ballot_sync(~0u, is_in);
    if (is_in) chosen[lanes_before(set)] = e;
    chosen += __popc(set);
  }
}

__device__ __forceinline__ float sum_of_chosen(const float* p, const int32_t* chosen, int k) {
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += p[chosen[j]];
  return sum < kLeastSum ? kLeastSum : sum;
}

// The caller that gives choices has checked them.
__global__ void __launch_bounds__(kTokenThreads)
    route_kernel(MatrixView<const float> logits, const float* bias, MatrixView<const int32_t> given,
                 bool normalised, MatrixView<float> probabilities, int32_t* all_chosen,
                 MatrixView<float> weights) {
  const int64_t token = this_token();
  if (token >= logits.rows) return;
  const int experts = static_cast<int>(logits.cols), k = static_cast<int>(weights.cols);
  float* p = probabilities.row(token);
  int32_t* chosen = all_chosen + token * k;
  softmax(logits.row(token), experts, p);
  if (given.rows > 0 && given.row(token)[0] != kChoose) {
    for (int j = this_lane(); j < k; j += kWarp) chosen[j] = given.row(token)[j];
  } else {
    choose(p, bias, experts, k, chosen);
  }
  __syncwarp();  // what other lanes wrote is read from here on
  const float sum = normalised ? sum_of_chosen(p, chosen, k) : 1;
  for (int j = this_lane(); j < k; j += kWarp) weights.row(token)[j] = p[chosen[j]] / sum;
}

// See kernels/cpu/router.cc for the formula. The row of dlogits may be that of p: all that is read
// of other lanes is read before the first lane writes.
__global__ void __launch_bounds__(kTokenThreads)
    route_backward_kernel(MatrixView<const float> probabilities, const int32_t* all_chosen,
                          MatrixView<const float> to_weights, bool normalised,
                          MatrixView<const float> balance, const int32_t* sequence_offsets,
                          MatrixView<float> dlogits) {
  const int64_t token = this_token();
  if (token >= probabilities.rows) return;
  const int experts = static_cast<int>(probabilities.cols), k = static_cast<int>(to_weights.cols);
  const float *p = probabilities.row(token), *dweights = to_weights.row(token);
  const int32_t* chosen = all_chosen + token * k;
  const float* gradient = nullptr;
  if (balance.rows > 0) {
    const int sequences = static_cast<int>(balance.rows);
    gradient = balance.row(sequence_of(sequence_offsets, sequences, token));
  }
  const float sum = normalised ? sum_of_chosen(p, chosen, k) : 1;
  float mean = 0;
  if (normalised && sum > kLeastSum)
    for (int j = 0; j < k; ++j) mean = fmaf(dweights[j], p[chosen[j]] / sum, mean);
  float of_chosen = 0;
  for (int j = 0; j < k; ++j) of_chosen += p[chosen[j]] / sum * (dweights[j] - mean);
  float dot = 0;
  if (gradient != nullptr)
    for (int e = this_lane(); e < experts; e += kWarp) dot = fmaf(p[e], gradient[e], dot);
  dot = sum_of_warp(dot) + of_chosen;
  __syncwarp();
  float* out = dlogits.row(token);
  int j = 0;  // both ids ascend
  for (int e = this_lane(); e < experts; e += kWarp) {
    const float own = p[e];
    float slope = 0;
    while (j < k && chosen[j] < e) ++j;
    if (j < k && chosen[j] == e) slope = own / sum * (dweights[j] - mean);
    out[e] = own * ((gradient == nullptr ? 0.0f : gradient[e]) - dot) + slope;
  }
}

// A block puts the choices of one expert in order. Each warp has a span of the choices: it counts
// first, and then knows where its own begin.
__global__ void __launch_bounds__(kGroupWarps* kWarp)
    group_kernel(const int32_t* chosen, int count, int k, int32_t* offsets, int32_t* tokens,
                 int32_t* rows) {
  __shared__ int of_lower[kGroupWarps], of_expert[kGroupWarps];
  const int expert = static_cast<int>(blockIdx.x), warp = this_warp();
  constexpr int kStep = kGroupWarps * kWarp;
  const int span = (count + kStep - 1) / kStep * kWarp;
  const int begin = min(warp * span, count), end = min(begin + span, count);
  int lower = 0, equal = 0;
  for (int c = begin + this_lane(); c < end; c += kWarp) {
    const int32_t id = chosen[c];
    lower += id < expert ? 1 : 0;
    equal += id == expert ? 1 : 0;
  }
  lower = sum_of_counts(lower);
  equal = sum_of_counts(equal);
  if (this_lane() == 0) {
    of_lower[warp] = lower;
    of_expert[warp] = equal;
  }
  __syncthreads();
  int row = 0;
  for (int w = 0; w < kGroupWarps; ++w) row += of_lower[w];
  if (threadIdx.x == 0) {
    offsets[expert] = row;
    if (blockIdx.x + 1 == gridDim.x) offsets[expert + 1] = count;
  }
  for (int w = 0; w < warp; ++w) row += of_expert[w];
  for (int first = begin; first < end; first += kWarp) {
    const int c = first + this_lane();
    const bool is_in = c < end && chosen[c] == expert;
    const unsigned set = __ballot_sync(~0u, is_in);
    if (is_in) {
      const int own = row + lanes_before(set);
      rows[c] = own;
      tokens[own] = c / k;
    }
    row += __popc(set);
  }
}

struct BalanceRows {
  const int32_t* chosen;
  int k;
  const int32_t* sequence_offsets;
  int sequences;
  float scale;
  int64_t* choices;
  double* losses;
};

// A block has kWarp experts, one a lane, and kBalanceWarps sequences at a time, one a warp. Warp 0
// adds up what they give, in their order.
__global__ void __launch_bounds__(kBalanceWarps* kWarp)
    balance_kernel(MatrixView<const float> probabilities, BalanceRows a,
                   MatrixView<float> gradient) {
  __shared__ int counts[kBalanceWarps][kWarp];
  __shared__ double terms[kBalanceWarps][kWarp];
  const int warp = this_warp(), lane = this_lane();
  const int first_expert = static_cast<int>(blockIdx.x) * kWarp, expert = first_expert + lane;
  const int64_t experts = probabilities.cols;
  const bool has_expert = expert < experts;
  int64_t choices = has_expert ? a.choices[expert] : 0;
  double loss = has_expert ? a.losses[expert] : 0;
  for (int first = 0; first < a.sequences; first += kBalanceWarps) {
    const int sequence = first + warp;
    const bool has_sequence = sequence < a.sequences;
    const int64_t begin = has_sequence ? a.sequence_offsets[sequence] : 0;
    const int64_t end = has_sequence ? a.sequence_offsets[sequence + 1] : 0;
    counts[warp][lane] = 0;
    __syncwarp();
    for (int64_t c = begin * a.k + lane; c < end * a.k; c += kWarp) {
      const int id = a.chosen[c] - first_expert;
      if (id >= 0 && id < kWarp) atomicAdd(&counts[warp][id], 1);
    }
    double sum = 0;
    if (has_expert) {
#pragma unroll 8
      for (int64_t t = begin; t < end; ++t) sum += probabilities.row(t)[expert];
    }
    __syncthreads();  // counts are whole
    if (has_sequence && has_expert) {
      const double tokens = static_cast<double>(end > begin ? end - begin : 1);
      const double slope = static_cast<double>(experts * counts[warp][lane]) / tokens;
      terms[warp][lane] = slope * sum;
      if (gradient.rows > 0) gradient.row(sequence)[expert] = static_cast<float>(a.scale * slope);
    }
    __syncthreads();
    if (warp == 0 && has_expert) {
      for (int w = 0; w < kBalanceWarps && first + w < a.sequences; ++w) {
        choices += counts[w][lane];
        loss += terms[w][lane];
      }
    }
    __syncthreads();  // before they are written again
  }
  if (warp == 0 && has_expert) {
    a.choices[expert] = choices;
    a.losses[expert] = loss;
  }
}

void check_choices(const ConstTensor& probabilities, std::span<const int32_t> chosen, int64_t k) {
  TR_CHECK(probabilities.cols <= kMaxExperts && k >= 1 && k <= probabilities.cols,
           "{} of {} experts", k, probabilities.cols);
  TR_CHECK(std::ssize(chosen) == probabilities.rows * k, "{} choices of {} tokens", chosen.size(),
           probabilities.rows);
}

}  // namespace

void route(const Stream& stream, const Route& args) {
  const int64_t tokens = args.logits.rows, experts = args.logits.cols, k = args.weights.cols;
  TR_CHECK(args.probabilities.rows == tokens && args.probabilities.cols == experts &&
               args.weights.rows == tokens &&
               (args.choice_bias.empty() || std::ssize(args.choice_bias) == experts) &&
               (args.given.rows == 0 || (args.given.rows == tokens && args.given.cols == k)),
           "logits [{}, {}], probabilities [{}, {}], weights [{}, {}], {} biases, given [{}, {}]",
           tokens, experts, args.probabilities.rows, args.probabilities.cols, args.weights.rows, k,
           args.choice_bias.size(), args.given.rows, args.given.cols);
  check_choices(args.probabilities, args.chosen, k);
  if (tokens == 0) return;
  const float* bias = args.choice_bias.empty() ? nullptr : args.choice_bias.data();
  launch(route_kernel, blocks_of(tokens), dim3(kTokenThreads), 0, stream,
         args.logits.on<float>(stream.device), bias, args.given, args.normalised,
         args.probabilities.on<float>(stream.device), args.chosen.data(),
         args.weights.on<float>(stream.device));
}

void route_backward(const Stream& stream, const RouteBackward& args) {
  const int64_t tokens = args.probabilities.rows, experts = args.probabilities.cols;
  const int64_t k = args.dweights.cols;
  TR_CHECK(args.dlogits.rows == tokens && args.dlogits.cols == experts &&
           args.dweights.rows == tokens);
  check_choices(args.probabilities, args.chosen, k);
  MatrixView<const float> balance;
  if (args.balance.rows > 0) {
    TR_CHECK(args.balance.cols == experts &&
             std::ssize(args.sequence_offsets) == args.balance.rows + 1);
    balance = args.balance.on<float>(stream.device);
  }
  if (tokens == 0) return;
  launch(route_backward_kernel, blocks_of(tokens), dim3(kTokenThreads), 0, stream,
         args.probabilities.on<float>(stream.device), args.chosen.data(),
         args.dweights.on<float>(stream.device), args.normalised, balance,
         args.sequence_offsets.data(), args.dlogits.on<float>(stream.device));
}

void group_by_expert(const Stream& stream, const ExpertGroups& args) {
  const int64_t k = args.experts_per_token, experts = std::ssize(args.offsets) - 1;
  const int64_t count = std::ssize(args.chosen);
  TR_CHECK(k >= 1 && args.tokens.size() == args.chosen.size() &&
               args.rows.size() == args.chosen.size() && count % k == 0,
           "{} choices, {} tokens, {} rows", count, args.tokens.size(), args.rows.size());
  TR_CHECK(experts >= 1 && experts <= kMaxExperts, "{} experts", experts);
  constexpr int64_t kMostChoices = std::numeric_limits<int32_t>::max() - kGroupWarps * kWarp;
  TR_CHECK(count <= kMostChoices, "{} choices", count);
  launch(group_kernel, dim3(static_cast<unsigned>(experts)), dim3(kGroupWarps * kWarp), 0, stream,
         args.chosen.data(), static_cast<int>(count), static_cast<int>(k), args.offsets.data(),
         args.tokens.data(), args.rows.data());
}

void expert_balance(const Stream& stream, const ExpertBalance& args) {
  const int64_t tokens = args.probabilities.rows, experts = args.probabilities.cols;
  const int64_t sequences = std::ssize(args.sequence_offsets) - 1;
  TR_CHECK(sequences >= 0 && std::ssize(args.choices) == experts &&
               std::ssize(args.losses) == experts &&
               (args.gradient.rows == 0 ||
                (args.gradient.rows == sequences && args.gradient.cols == experts)),
           "{} tokens in {} sequences, {} experts", tokens, sequences, experts);
  if (tokens == 0) return;
  const int64_t k = std::ssize(args.chosen) / tokens;
  check_choices(args.probabilities, args.chosen, k);
  MatrixView<float> gradient;
  if (args.gradient.rows > 0) gradient = args.gradient.on<float>(stream.device);
  const BalanceRows rows{.chosen = args.chosen.data(),
                         .k = static_cast<int>(k),
                         .sequence_offsets = args.sequence_offsets.data(),
                         .sequences = static_cast<int>(sequences),
                         .scale = args.scale,
                         .choices = args.choices.data(),
                         .losses = args.losses.data()};
  launch(balance_kernel, dim3(static_cast<unsigned>((experts + kWarp - 1) / kWarp)),
         dim3(kBalanceWarps * kWarp), 0, stream, args.probabilities.on<float>(stream.device), rows,
         gradient);
}

}  // namespace tailrace::cuda
