// The coefficients of a decode step from steps that were timed.
//
// Thread: any.
#pragma once

#include <span>

#include "scheduler/simulator/hardware.h"

namespace tailrace {

struct DecodePoint {
  double batch = 0, context = 0;  // sequences, and tokens of KV together
  double seconds = 0;
};

// Least squares of the relative error, with coefficients that are not negative. At least one point.
simulator::DecodeModel fit_decode(std::span<const DecodePoint> points);

}  // namespace tailrace
