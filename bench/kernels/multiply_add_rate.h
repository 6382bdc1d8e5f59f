// The rate that products are held against: multiply-adds in registers, on every thread.
//
// Thread: one at a time.
#pragma once

#include <functional>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

// How long each run of a kernel takes: for `seconds` of them, and at least five, behind one that
// warms up. With one thread its CPU time, which others on the machine do not lengthen; else wall
// time.
std::vector<double> seconds_of(const Stream& stream, double seconds,
                               const std::function<void()>& kernel);

// Operations a second of the fastest run, two a multiply-add; bf16 in pairs, 0 where the processor
// has no such instruction.
double multiply_add_rate(const Stream& stream, Dtype weight, double seconds);

}  // namespace tailrace
