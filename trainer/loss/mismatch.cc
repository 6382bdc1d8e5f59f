#include "trainer/loss/mismatch.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "trainer/loss/policy_loss.h"

namespace tailrace {

void MismatchSums::add(std::span<const float> behaviour, std::span<const float> old) {
  TR_CHECK(behaviour.size() == old.size(), "{} and {}", behaviour.size(), old.size());
  if (behaviour.empty()) return;
  // Sums of squares about the first value: about 0 they would cancel, since log-probabilities are
  // close to each other and far from 0.
  if (tokens_ == 0) first_x_ = behaviour[0], first_y_ = old[0];
  double gap = 0;
  for (size_t t = 0; t < behaviour.size(); ++t) {
    const double log_ratio = std::clamp(double{behaviour[t]} - old[t], -kMaxLogRatio, kMaxLogRatio);
    const double prob_diff = std::abs(std::exp(double{behaviour[t]}) - std::exp(double{old[t]}));
    gap += log_ratio;
    abs_prob_diff_ += prob_diff;
    max_prob_diff_ = std::max(max_prob_diff_, prob_diff);
    // The expectation of w^2 under the sampler, w = old / behaviour; chi2 is that minus 1.
    w2_ += std::exp(-2 * log_ratio);
    const double x = behaviour[t] - first_x_, y = old[t] - first_y_;
    x_ += x, y_ += y;
    xx_ += x * x, xy_ += x * y, yy_ += y * y;
  }
  k1_ += gap;
  // By sequence: the perplexity of old over that of the sampler.
  ppl_ratio_ += std::exp(gap / static_cast<double>(behaviour.size()));
  tokens_ += std::ssize(behaviour);
  ++sequences_;
}

Mismatch MismatchSums::mean() const {
  TR_CHECK(tokens_ > 0);
  const auto n = static_cast<double>(tokens_);
  Mismatch mean{.k1 = k1_ / n,
                .abs_prob_diff = abs_prob_diff_ / n,
                .max_prob_diff = max_prob_diff_,
                .chi2 = w2_ / n - 1,
                .ppl_ratio = ppl_ratio_ / static_cast<double>(sequences_),
                .correlation = {}};
  const double x_spread = xx_ - x_ * x_ / n, y_spread = yy_ - y_ * y_ / n;
  if (x_spread > 0 && y_spread > 0)
    mean.correlation = (xy_ - x_ * y_ / n) / std::sqrt(x_spread * y_spread);
  return mean;
}

}  // namespace tailrace
