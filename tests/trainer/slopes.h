// Gradients against the slopes of the loss that they are of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "tests/trainer/fixtures.h"

namespace tailrace::testing {

// Moves each tensor along a random direction and compares the loss's central difference with
// `gradient` [floats of the layout]. `loss`: at the weights as they are; weights_changed() is told.
// `noise`: what its float32 makes of a slope.
template <class Loss>
void expect_slopes(PolicyTrainer& trainer, const std::vector<float>& gradient, Rng& rng,
                   const Loss& loss, double noise = 1e-4) {
  for (const ParameterInfo& info : trainer.model().layout().entries()) {
    auto begin = static_cast<size_t>(info.offset), size = static_cast<size_t>(info.size);
    std::vector<float> before = copy(trainer.parameters().flat().subspan(begin, size));
    double analytic = 0, norm = 0;
    std::vector<double> direction(size);
    for (size_t i = 0; i < size; ++i) {
      direction[i] = rng.normal();
      analytic += direction[i] * gradient[begin + i];
      norm += direction[i] * direction[i];
    }
    norm = std::sqrt(norm);
    constexpr double kStep = 2e-3;
    auto at = [&](double step) {
      for (size_t i = 0; i < size; ++i) {
        trainer.parameters().flat()[begin + i] =
            static_cast<float>(before[i] + step * direction[i] / norm);
      }
      trainer.weights_changed();
      return loss();
    };
    double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
    std::ranges::copy(before, trainer.parameters().flat().begin() + info.offset);
    // The forward pass is float: a loss of 1 carries about 1e-7, so the slope 1e-7 / kStep; the
    // difference's own error is of order kStep^2.
    EXPECT_NEAR(analytic / norm, slope, noise + .01 * std::abs(slope)) << info.name;
  }
  trainer.weights_changed();
}

}  // namespace tailrace::testing
