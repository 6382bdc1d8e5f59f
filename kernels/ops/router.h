// The router of a sparse layer: which experts a token goes to, with which weights, and how evenly
// they are used.
//
// k is the number of experts a token. A token's choice is a list of k ids, ascending, at
// chosen[t * k]; whatever is of one choice (a weight, a row of a grouped product) comes in that
// order, so that a sum over a token's experts has one order too. Each token is computed by itself:
// its choice and weights have the same bits whatever else is in the batch (design rule 3).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

constexpr int64_t kMaxExperts = 4096;

// p[t, e] = exp(logits[t, e]) / sum over f of exp(logits[t, f])
//
// The k experts of the largest p[t, e] + choice_bias[e] are chosen; of two that are equal the one
// with the lower id. The bias decides the choice alone (2408.15664): a weight is
// p[t, e] / (sum of p[t, f] over the chosen f), and p[t, e] without `normalised`.
//
// `given` takes the choice away (routing replay, 2510.11370): its experts are the chosen ones, and
// only the weights are computed. A token whose first id there is kChoose chooses for itself.
//
//   logits, probabilities [tokens, experts], may be the same; 1 <= k <= experts <= kMaxExperts
//   choice_bias           [experts], or empty: zeros
//   given                 [tokens, k], ascending ids of a token or kChoose; or no rows
//   chosen                [tokens * k]
//   weights               [tokens, k]
// float32: the sum of exp in an order that the number of experts decides, on the CPU 16 lanes
// joined in a fixed tree; that of the chosen in their order and at least the smallest normal float.
// tokens == 0 is allowed.
constexpr int32_t kChoose = -1;
struct Route {
  ConstTensor logits;
  std::span<const float> choice_bias = {};
  MatrixView<const int32_t> given = {};
  bool normalised = false;
  Tensor probabilities;
  std::span<int32_t> chosen;
  Tensor weights;
};
void route(const Stream& stream, const Route& args);

// dlogits, overwritten, given the gradient to the weights of the choices, and `balance`: the
// gradient to the probabilities of each token of a sequence (expert_balance). The choice itself has
// none.
//
//   probabilities, dlogits [tokens, experts], may be the same
//   chosen                 [tokens * k]
//   dweights               [tokens, k]
//   balance                [sequences, experts], or no rows
//   sequence_offsets       [sequences + 1], ascending from 0 to tokens; read with a balance only
struct RouteBackward {
  ConstTensor probabilities;
  std::span<const int32_t> chosen;
  ConstTensor dweights;
  bool normalised = false;
  ConstTensor balance = {};
  std::span<const int32_t> sequence_offsets = {};
  Tensor dlogits;
};
void route_backward(const Stream& stream, const RouteBackward& args);

// Choices sorted by their expert, those of one expert in the order of the tokens: what grouped
// products read.
//
//   chosen  [tokens * k]
//   offsets [experts + 1]: the rows of expert e are offsets[e] to below offsets[e + 1]
//   tokens  [tokens * k]: the token of a row
//   rows    [tokens * k]: the row of a choice
struct ExpertGroups {
  std::span<const int32_t> chosen;
  int64_t experts_per_token = 0;
  std::span<int32_t> offsets, tokens, rows;
};
void group_by_expert(const Stream& stream, const ExpertGroups& args);

// How evenly the experts of one layer are used, sequence by sequence: the balance loss of the
// Switch Transformer (2101.03961) in the form that Qwen's files give a coefficient for,
//
//   loss(s) = experts * sum over e of f[s, e] * P[s, e],      k when all are used alike
//   f[s, e] = (choices of e by tokens of s) / tokens of s,    P[s, e] = mean of p[t, e] over t in s
//
// of each sequence by itself, so that it does not depend on who shares the batch.
//
//   probabilities    [tokens, experts], chosen [tokens * k], sequence_offsets as above
//   gradient         [sequences, experts], overwritten: scale * experts * f[s, e], the gradient of
//                    scale * (sum over s of tokens(s) * loss(s)) to each p[t, e]; or no rows
//   choices          [experts] += how often each was chosen
//   losses           [experts] += its terms of the sum over s of tokens(s) * loss(s)
// Sums are double, in the order of the tokens.
struct ExpertBalance {
  ConstTensor probabilities;
  std::span<const int32_t> chosen;
  std::span<const int32_t> sequence_offsets;
  float scale = 0;
  Tensor gradient = {};
  std::span<int64_t> choices;
  std::span<double> losses;
};
void expert_balance(const Stream& stream, const ExpertBalance& args);

}  // namespace tailrace
