// The ops on the CPU, as its own sources see them: vectorised, threaded over stream.pool. Their
// contracts are in kernels/ops, whose names dispatch.cc forwards here.
//
// Each source is compiled once for each instruction set, with TR_ISA as its name; everything that
// is compiled so lives in an inline namespace of that name, and no two of them share a symbol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/cpu/isa_name.h"
#include "kernels/ops/all.h"

// Behind what it names.
// clang-format off
#include "kernels/cpu/ops.inc"
// clang-format on
