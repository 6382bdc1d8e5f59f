#include "trainer/loss/value_loss.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tailrace {

double value_loss(const ValueLossInput& input, double value_clip, double weight,
                  std::span<double> dvalue) {
  const size_t tokens = input.value.size();
  TR_CHECK(input.old_value.size() == tokens && input.returns.size() == tokens &&
               input.mask.size() == tokens && dvalue.size() == tokens,
           "{} values", tokens);
  double loss = 0;
  for (size_t t = 0; t < tokens; ++t) {
    dvalue[t] = 0;
    if (input.mask[t] == 0) continue;
    const double v = input.value[t], old = input.old_value[t], target = input.returns[t];
    const double error = v - target;
    const double cut =
        value_clip == 0 ? error : std::clamp(v, old - value_clip, old + value_clip) - target;
    // PPO's clip takes the larger of the two errors: a value that has moved past the bound towards
    // its return has no gradient, and one that moved away from it still has.
    const bool clipped = cut * cut > error * error;
    loss += weight / 2 * (clipped ? cut * cut : error * error);
    if (!clipped) dvalue[t] = weight * error;
  }
  return loss;
}

}  // namespace tailrace
