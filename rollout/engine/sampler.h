// Draws a token from logits: temperature, then top-k, then softmax, then top-p, then min-p.
//
// A draw is a pure function of (logits, parameters, uniform number). The number is the one that the
// sequence's key has for the token's absolute position, so it does not depend on what else is
// sampled, on preemption, or on who resumes a sequence. Ties go to the smaller id.
//
// Thread: any; scratch belongs to one call.
#pragma once

#include <cstdint>
#include <span>

#include "core/generate.h"

namespace tailrace {

// Both [vocab]; uninitialised.
struct SamplerScratch {
  std::span<float> weights;
  std::span<int32_t> ids;
};

// In [0, 1): philox(key, position).
double sample_uniform(SampleKey key, int64_t position);

struct Drawn {
  TokenId token = 0;
  // What truncation left to draw from, ascending, in scratch.ids; empty without truncation.
  std::span<const int32_t> kept = {};
};

// logits [vocab], not yet divided by the temperature.
Drawn sample_token(std::span<const float> logits, const SamplingParams& params, double uniform,
                   SamplerScratch scratch);

// The tokens that truncation keeps: the first n entries of scratch.ids, likeliest first, with their
// unnormalised probabilities at scratch.weights[id]. Returns n >= 1. temperature > 0.
int64_t keep_tokens(std::span<const float> logits, const SamplingParams& params,
                    SamplerScratch scratch);

}  // namespace tailrace
