// How far what sampled (behaviour, l_inf) is from the weights that a step starts from (old, l_old),
// as verl and slime monitor it: a step's numbers over all of its tokens, before any correction.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tailrace {

// All of it is 0, and the last two are 1, where the two policies are one. Log-ratios are clamped
// (kMaxLogRatio).
struct Mismatch {
  double k1 = 0;             // nats: mean of l_inf - l_old, an estimate of KL(behaviour || old)
  double abs_prob_diff = 0;  // mean of |exp(l_inf) - exp(l_old)|
  double max_prob_diff = 0;
  double chi2 = 0;       // mean of w^2, less 1, of w = exp(l_old - l_inf): chi^2(old || behaviour)
  double ppl_ratio = 1;  // perplexity of old over that of behaviour, mean over sequences
  // Pearson's, of l_inf and l_old; none where one of them is the same for all tokens.
  std::optional<double> correlation;
};

// Adds up sequences, of any number of tokens each.
class MismatchSums {
 public:
  void add(std::span<const float> behaviour, std::span<const float> old);
  Mismatch mean() const;  // at least one token was added

 private:
  int64_t tokens_ = 0, sequences_ = 0;
  double k1_ = 0, abs_prob_diff_ = 0, max_prob_diff_ = 0, w2_ = 0, ppl_ratio_ = 0;
  // Sums of the correlation: as differences to the first token, so that equal values are exactly 0.
  double first_x_ = 0, first_y_ = 0;
  double x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;
};

}  // namespace tailrace
