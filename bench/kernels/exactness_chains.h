// A liberty of products: each sum is several chains over k that are joined at the end.
//
// Thread: any.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "kernels/cpu/gemm.h"

namespace tailrace {

// c = a B, or with `add_to_c` c += a B; B in panels of floats or pairs.
struct ChainsProduct {
  ConstMatrix a;
  gemm::Form form = gemm::Form::kFloats;
  const void* panels = nullptr;
  bool add_to_c = false;
  Matrix c;
};
// In 2, 4 or 8 chains: term k, or the pair of number k, belongs to chain k modulo `chains`.
void multiply_in_chains(const Stream& stream, int chains, const ChainsProduct& product);

}  // namespace tailrace
