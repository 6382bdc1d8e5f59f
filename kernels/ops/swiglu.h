// The gated activation of a Llama MLP.
#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// y = silu(gate) * up, silu(g) = g / (1 + exp(-g));  gate, up, y [tokens, dim]; y may be gate or
// up.
struct Swiglu {
  ConstMatrix gate, up;
  Matrix y;
};
void swiglu(const Stream& stream, const Swiglu& args);

// Overwrites dgate and dup; either may be dy.
struct SwigluBackward {
  ConstMatrix gate, up, dy;
  Matrix dgate, dup;
};
void swiglu_backward(const Stream& stream, const SwigluBackward& args);

}  // namespace tailrace
