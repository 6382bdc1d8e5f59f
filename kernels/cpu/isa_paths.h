// The ops of every instruction set that this build has, for who chooses: cpu::avx512::linear, ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/all.h"

#define TR_ISA portable
#include "kernels/cpu/ops.inc"
#undef TR_ISA
#if defined(__x86_64__)
#define TR_ISA avx2
#include "kernels/cpu/ops.inc"
#undef TR_ISA
#define TR_ISA avx512
#include "kernels/cpu/ops.inc"
#undef TR_ISA
#endif
