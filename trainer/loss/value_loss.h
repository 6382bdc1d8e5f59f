// The loss of a value function: a pure function from values and returns to a number and its
// gradient (PPO, 1707.06347; the clip is that of its code).
//
//   loss = sum over trained tokens of  weight / 2 * max((v - R)^2, (clip(v) - R)^2)
//
// clip(v): v cut to old_value +- value_clip; there is no gradient where the clipped term is larger.
// Sums are in double, and micro-batches add up: the weight comes from outside.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <span>

namespace tailrace {

// All [tokens].
struct ValueLossInput {
  std::span<const float> value;      // v: of the present head
  std::span<const float> old_value;  // of the head that the step starts from
  std::span<const float> returns;    // R: what v is to be
  std::span<const uint8_t> mask;     // 0: the token changes nothing, whatever its values are
};

// weight: of a token; 1 / trained tokens of the update makes a mean of it. value_clip: 0 is off.
// Writes dL/dv to dvalue [tokens], 0 where the mask is.
double value_loss(const ValueLossInput& input, double value_clip, double weight,
                  std::span<double> dvalue);

}  // namespace tailrace
