#include "kernels/base/isa.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

// The widest first.
constexpr std::array kAll = {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kPortable};
constexpr double kGainThatPays = 1.25;

// Whether this build has the kernels of `isa` (TAILRACE_ISAS of CMakeLists.txt).
bool is_built(Isa isa) {
#define TR_TEXT_OF(name) #name
#define TR_TEXT(name) TR_TEXT_OF(name)
#ifdef TR_ONLY_ISA
  return name_of(isa == Isa::kAvx512Bf16 ? Isa::kAvx512 : isa) == TR_TEXT(TR_ONLY_ISA);
#else
  static_cast<void>(isa);
  return true;
#endif
}

bool is_of_this_machine(Isa isa) {
  if (isa == Isa::kPortable) return true;
    // The flags with which kernels/cpu is compiled (its CMakeLists.txt).
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         (isa == Isa::kAvx512 || __builtin_cpu_supports("avx512bf16"));
#else
  return false;
#endif
}

// "avx512, avx2, portable"
std::string names_of(bool (*has)(Isa)) {
  std::string names;
  for (const Isa isa : kAll)
    if (has(isa)) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(isa));
  return names;
}

std::optional<Isa> asked_for() {
  const char* name = std::getenv("TAILRACE_ISA");
  for (const Isa isa : kAll)
    if (name != nullptr && name_of(isa) == name) return isa;
  return std::nullopt;
}

Isa choose() {
  const auto fault = isa_fault();
  TR_CHECK(!fault, "{}", *fault);
  if (const auto asked = asked_for()) return *asked;
  for (const Isa isa : kAll)
    if (is_available(isa) && (isa != Isa::kAvx512Bf16 || pairs_pay())) return isa;
  return Isa::kPortable;
}

}  // namespace

#if defined(__x86_64__)
// In the namespace of its instruction set, as all that not every machine has.
namespace avx512 {

// Both are chains of as many sums as hide the latency of one; the compiler is to keep them.
#define TR_CHAINS(Vector, instruction)                                        \
  Vector sums[12] = {};                                                       \
  for (int i = 0; i < 400; ++i)                                               \
    for (Vector & sum : sums) asm volatile(instruction : "+v"(sum) : "v"(x)); \
  for (Vector & sum : sums) asm volatile("" : : "v"(sum))
using Floats = float __attribute__((vector_size(64)));
__attribute__((target("avx512f"), noinline)) static void multiply_floats() {
  const Floats x = {};
  TR_CHAINS(Floats, "vfmadd231ps %1, %1, %0");
}
__attribute__((target("avx512f,avx512bf16"), noinline)) static void multiply_pairs() {
  const Floats x = {};
  TR_CHAINS(Floats, "vdpbf16ps %1, %1, %0");
}
#undef TR_CHAINS

}  // namespace avx512
#endif

bool pairs_pay() { return measured_gain_of_pairs() > kGainThatPays; }

double measured_gain_of_pairs() {
#if defined(__x86_64__)
  static const double gain = [] {
    if (!is_available(Isa::kAvx512Bf16)) return 0.0;
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](void (*work)()) {
      const auto start = Clock::now();
      work();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    // The least of several in turns: what interrupts one does not interrupt all.
    double floats = seconds(avx512::multiply_floats), pairs = seconds(avx512::multiply_pairs);
    for (int i = 0; i < 50; ++i) {
      floats = std::min(floats, seconds(avx512::multiply_floats));
      pairs = std::min(pairs, seconds(avx512::multiply_pairs));
    }
    return 2 * floats / pairs;
  }();
  return gain;
#else
  return 0;
#endif
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  TR_CHECK(false, "no instruction set");
}

bool is_available(Isa isa) { return is_built(isa) && is_of_this_machine(isa); }

std::optional<std::string> isa_fault() {
  const std::string available = names_of(is_available);
  if (available.empty())
    return fmt::format(
        "the kernels of this build are for {} alone, and this machine has {}. Build it here, or "
        "with -DTAILRACE_ISAS=all (as 'make build' does) for every machine.",
        names_of(is_built), names_of(is_of_this_machine));
  const char* name = std::getenv("TAILRACE_ISA");
  if (name == nullptr || *name == '\0') return std::nullopt;
  const auto asked = asked_for();
  if (asked && is_available(*asked)) return std::nullopt;
  const bool has_all = available == names_of(is_of_this_machine);
  return fmt::format("TAILRACE_ISA is {}; {} has {}. Set one of them, or unset it{}.", name,
                     has_all ? "this machine" : "this build", available,
                     has_all ? "" : "; 'make build' makes a build with all");
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace tailrace
