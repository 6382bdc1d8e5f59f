#include "trainer/loss/correction.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tailrace {

void CorrectionOptions::visit(OptionVisitor& v) {
  v.field("kind", kind,
          {.help = "tis: multiply the loss by min(exp(l_old - l_inf), cap); 1 for tokens that the "
                   "current weights sampled from the whole distribution, in the trainer's "
                   "numerics class"});
  v.field("level", level, {.help = "one weight a token, or the product over a sequence"});
  v.field("cap", cap, {.help = "largest weight", .min = 1e-6, .max = kMaxCount});
}

int64_t correction_weights(const CorrectionOptions& options, std::span<const double> log_weight,
                           std::span<double> weight) {
  if (options.kind == CorrectionKind::kNone) {
    std::ranges::fill(weight, 1.0);
    return 0;
  }
  // The importance weight of a sequence is the product over its tokens, whose logarithms add up.
  double sum = 0;
  for (double x : log_weight) sum += x;
  int64_t capped = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    // Compared in the log domain: a long sequence's product may overflow.
    double x = options.level == CorrectionLevel::kToken ? log_weight[i] : sum;
    bool cut = x > std::log(options.cap);
    weight[i] = cut ? options.cap : std::exp(x);
    capped += cut;
  }
  return capped;
}

double effective_sample_share(std::span<const double> log_weight) {
  TR_CHECK(!log_weight.empty());
  // Against the largest, which changes nothing in the quotient: squares of weights overflow.
  const double largest = std::ranges::max(log_weight);
  double sum = 0, squares = 0;
  for (double x : log_weight) {
    const double weight = std::exp(x - largest);
    sum += weight;
    squares += weight * weight;
  }
  return sum * sum / (static_cast<double>(log_weight.size()) * squares);
}

}  // namespace tailrace
