// A backend's choice of how it multiplies, made and proved when a process starts.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

// Before products by weights [out, in]: lets the backend of the stream's device try the fastest way
// and prove it. Takes memory of the device and waits for the stream. What was proved is kept for
// the process. Without this call a forward product has the same bits, and large ones may take
// longer.
void prove_products(const Stream& stream, Dtype dtype, int64_t out, int64_t in);

}  // namespace tailrace
