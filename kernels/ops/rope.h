// Rotary position embedding, half-rotation form (Hugging Face Llama): dimension i of a head is
// paired with i + head_dim / 2.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace tailrace {

// table[p, i] = cos(p * inv_freq[i]), table[p, half + i] = sin(p * inv_freq[i]);  table [positions,
// 2 * half]. Angles are computed in double and rounded once.
void rope_table(const Stream& stream, std::span<const double> inv_freq, Matrix table);

// x [tokens, num_heads * head_dim], rotated in place by the angle of positions[t]:
//   (a, b) -> (a cos - b sin, b cos + a sin);  `inverse` rotates back, which is the gradient.
void rope(const Stream& stream, Matrix x, int num_heads, std::span<const int32_t> positions,
          ConstMatrix table, bool inverse);

}  // namespace tailrace
