// Floats as the bfloat16 values that are published, and as float16 for files that came so.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace tailrace {

// The values as bfloat16, to the nearest, ties to even, in pieces.
void rounded_to_bf16(std::span<const float> values,
                     const std::function<void(std::span<const std::byte>)>& to);

// From here on a float rounds to an infinity of float16, whose largest value is 65504.
inline constexpr float kF16Limit = 65520;
// The bits of a float16: to the nearest, ties to even; subnormal ones too. NaN stays NaN.
uint16_t to_f16_bits(float value);
// The float of such bits, exactly; a NaN keeps its payload.
float from_f16_bits(uint16_t bits);
// The values as float16, in pieces. All are smaller than kF16Limit.
void rounded_to_f16(std::span<const float> values,
                    const std::function<void(std::span<const std::byte>)>& to);

}  // namespace tailrace
