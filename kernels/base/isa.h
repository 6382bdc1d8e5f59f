// Which instruction set the ops of the CPU use, of those that this machine has: the widest that
// pays, or the one that TAILRACE_ISA names. Fixed for the life of the process.
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
  // The same, and products with a bfloat16 weight in pairs (AVX512_BF16): two terms of a sum in one
  // instruction, for which the other operand is rounded to bfloat16. Products of floats have the
  // bits of kAvx512. A build has both or neither.
  kAvx512Bf16,
};

// "portable", "avx2", "avx512", "avx512_bf16"
std::string_view name_of(Isa isa);
bool is_available(Isa isa);  // in this build and on this machine

// How many multiply-adds the instruction for pairs does in the time of one of floats, measured once,
// in less than a millisecond: about 2 on Zen 4, and below 1 on Xeons with AMX. 0 without it.
double measured_gain_of_pairs();
// It is above 1.25: products go in pairs, unless TAILRACE_ISA says otherwise.
bool pairs_pay();

// The fault of TAILRACE_ISA; nothing: it may be asked for. main() asks first.
std::optional<std::string> isa_fault();
// TR_CHECKs that there is no fault.
Isa isa();

}  // namespace tailrace
