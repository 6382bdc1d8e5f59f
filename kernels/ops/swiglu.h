// The gated activation of an MLP (Shazeer 2020, GLU Variants).
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// g / (1 + exp(-z)):
enum class GateActivation : uint8_t {
  kSilu,      // z = g
  kGeluTanh,  // z = 2 sqrt(2 / pi) (g + 0.044715 g^3); the same as g / 2 (1 + tanh(z / 2))
};

// y = activation(gate) * up;  gate, up, y [tokens, dim]; y may be gate or up.
struct Swiglu {
  ConstTensor gate, up;
  Tensor y;
  GateActivation activation = GateActivation::kSilu;
};
void swiglu(const Stream& stream, const Swiglu& args);

// Overwrites dgate and dup; either may be dy. gate, up and product are operands, the others
// float32.
struct SwigluBackward {
  ConstTensor gate, up, dy;
  Tensor dgate, dup;
  GateActivation activation = GateActivation::kSilu;
  // [tokens, dim] what swiglu() gave, bit for bit, made along the way; no rows: nobody asks. CPU
  // alone.
  Tensor product = {};
};
void swiglu_backward(const Stream& stream, const SwigluBackward& args);

}  // namespace tailrace
