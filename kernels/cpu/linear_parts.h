// Products with some rows of a weight, for ops that pass over a head in blocks of its vocabulary.
#pragma once

#include <cstdint>

#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/cpu/isa_name.h"
#include "kernels/ops/linear.h"

namespace tailrace::cpu::inline TR_ISA {

// Rows [begin, end) as a weight of their own; begin is a multiple of kWeightRows.
Weight rows_of(const Weight& weight, int64_t begin, int64_t end);

// dx = dy W, as linear_grad_input(); going on, dx has the sums over the rows of a larger W that
// stand before these, and ends with the bits of one product with all of them.
void grad_input_of_rows(const Stream& stream, Workspace& workspace, ConstMatrix dy,
                        const Weight& weight, bool goes_on, Matrix dx);

}  // namespace tailrace::cpu::inline TR_ISA
