#include "kernels/base/isa.h"

#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr std::array kAll = {Isa::kAvx512, Isa::kAvx2, Isa::kPortable};  // the widest first

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
    if (is_available(isa)) return isa;
  return Isa::kPortable;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  TR_CHECK(false, "no instruction set");
}

// The flags with which kernels/cpu is compiled (its CMakeLists.txt).
bool is_available(Isa isa) {
  if (isa == Isa::kPortable) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

std::optional<std::string> isa_fault() {
  const char* name = std::getenv("TAILRACE_ISA");
  if (name == nullptr || *name == '\0') return std::nullopt;
  std::string available;
  for (const Isa isa : kAll)
    if (is_available(isa))
      available += fmt::format("{}{}", available.empty() ? "" : ", ", name_of(isa));
  const auto asked = asked_for();
  if (asked && is_available(*asked)) return std::nullopt;
  return fmt::format("TAILRACE_ISA is {}; this machine has {}. Set one of them, or unset it.", name,
                     available);
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

}  // namespace tailrace
