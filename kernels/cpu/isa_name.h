// TR_ISA, the instruction set that a source of kernels/cpu is compiled for: the build gives it,
// with the compiler's flags. It is also the name of the inline namespace.
#pragma once

#ifndef TR_ISA
#error "compile this as part of kernels/cpu, once for each instruction set"
#endif
