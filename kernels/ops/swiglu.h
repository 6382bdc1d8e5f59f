// The gated activation of a Llama MLP.
#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// y = silu(gate) * up, silu(g) = g / (1 + exp(-g));  gate, up, y [tokens, dim]; y may be gate or
// up.
void swiglu(const Stream& stream, ConstMatrix gate, ConstMatrix up, Matrix y);

// Overwrites dgate and dup; either may be dy.
void swiglu_backward(const Stream& stream, ConstMatrix gate, ConstMatrix up, ConstMatrix dy,
                     Matrix dgate, Matrix dup);

}  // namespace tailrace
