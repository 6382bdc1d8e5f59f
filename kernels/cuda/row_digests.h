// Digests of rows of a weight on the device. See kernels/ops/row_digests.h.
#pragma once

#include "kernels/ops/row_digests.h"

namespace tailrace::cuda {

void digest_rows(const Stream& stream, const RowDigests& args);

}  // namespace tailrace::cuda
