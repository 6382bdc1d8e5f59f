// Which instruction set the ops of the CPU use, of those that this machine has: the widest, or the
// one that TAILRACE_ISA names. Fixed for the life of the process.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

enum class Isa : uint8_t {
  kPortable,  // plain loops; the only one off x86-64
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F, BW, DQ and VL
};

std::string_view name_of(Isa isa);  // "portable", "avx2", "avx512"
bool is_available(Isa isa);         // in this build and on this machine

// The fault of TAILRACE_ISA; nothing: it may be asked for. main() asks first.
std::optional<std::string> isa_fault();
// TR_CHECKs that there is no fault.
Isa isa();

}  // namespace tailrace
