// The arguments of a draw for kernels/ops/sample.h.
//
// A draw is a pure function of (logits, parameters, uniform number). The number is the one that the
// sequence's key has for the token's absolute position, so it does not depend on what else is
// sampled, on preemption, or on who resumes a sequence.
#pragma once

#include <cstdint>

#include "core/generate.h"
#include "kernels/ops/sample.h"

namespace tailrace {

// In [0, 1): philox(key, position).
double sample_uniform(SampleKey key, int64_t position);

// truncates() says the same of the row as of the parameters.
SamplingRow sampling_row(const SamplingParams& params, double uniform);

}  // namespace tailrace
