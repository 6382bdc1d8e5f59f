// Floats as the bfloat16 values that are published.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace tailrace {

// The values as bfloat16, to the nearest, ties to even, in pieces.
void rounded_to_bf16(std::span<const float> values,
                     const std::function<void(std::span<const std::byte>)>& to);

}  // namespace tailrace
