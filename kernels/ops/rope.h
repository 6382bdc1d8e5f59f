// Rotary position embedding, half-rotation form (Hugging Face Llama): dimension i of a head is
// paired with i + head_dim / 2.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// table[p, i] = scale * cos(p * inv_freq[i]), table[p, half + i] = scale * sin(p * inv_freq[i]);
// table [positions, 2 * half]. In double, and rounded once. `scale` is 1 but in YaRN (Peng et al.
// 2023), which makes queries and keys longer by it.
struct RopeTable {
  std::span<const double> inv_freq;
  double scale = 1;
  Matrix table;
};
void rope_table(const Stream& stream, const RopeTable& args);

// x [tokens, num_heads * head_dim], float32 or an operand, rotated in place by the angle of
// positions[t]:
//   (a, b) -> (a cos - b sin, b cos + a sin);  `inverse` rotates by the opposite angle, which is
//   the gradient.
struct Rope {
  Tensor x;
  int num_heads = 0;
  std::span<const int32_t> positions;
  ConstTensor table;
  bool inverse = false;
};
void rope(const Stream& stream, const Rope& args);

}  // namespace tailrace
