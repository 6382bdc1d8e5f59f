// Errors and what tests ask the emulation.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include "kernels/base/check.h"
#include "kernels/cuda/host/machine.h"

namespace tailrace::cuda::emulation {
namespace {

// Where the program was loaded.
uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &address);
  return address;
}

}  // namespace

void order_from_environment() {
  if (std::exchange(g_machine.order_is_set, true)) return;
  const char* text = std::getenv("EMU_ORDER");
  if (text == nullptr) return;
  const std::string_view order = text;
  TR_CHECK(order == "forward" || order == "reverse", "EMU_ORDER is {}", order);
  g_machine.order = order == "reverse" ? Order::kReverse : Order::kForward;
}

void error(const void* place, std::string text) {
  // A race of a loop is one error and not thousands.
  for (const Machine::Error& e : g_machine.errors)
    if (place != nullptr && place != g_machine.launch.kernel && e.place == place) return;
  if (g_machine.errors.size() >= kMaxErrors) return;
  if (g_machine.running)
    text = fmt::format("block ({}, {}, {}) thread {}: {}", blockIdx.x, blockIdx.y, blockIdx.z,
                       g_machine.current, text);
  g_machine.errors.push_back({std::move(text), place});
}

// By addr2line, of binutils, which whoever compiles has.
std::string name_of(const void* place) {
  if (place == nullptr) return "";
  std::array<char, 512> program{}, line{};
  const ssize_t length = readlink("/proc/self/exe", program.data(), program.size() - 1);
  const uintptr_t address = reinterpret_cast<uintptr_t>(place) - load_address();
  const std::string plain = fmt::format(" at {:#x}", address);
  if (length <= 0) return plain;
  const std::string command =
      fmt::format("addr2line -Cfpse '{}' {:#x} 2>/dev/null", program.data(), address);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return plain;
  const bool has_line = std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr;
  pclose(pipe);
  std::string_view text = line.data();
  if (!has_line || text.starts_with("??")) return plain;
  if (text.ends_with('\n')) text.remove_suffix(1);
  return fmt::format(", in {}", text);
}

std::vector<std::string> take_errors_locked() {
  std::vector<std::string> texts;
  for (const Machine::Error& e : std::exchange(g_machine.errors, {})) {
    // A return address is that of the next instruction; a kernel's is its own.
    const auto* at = static_cast<const char*>(e.place);
    texts.push_back(e.text +
                    name_of(e.place == g_machine.launch.kernel || at == nullptr ? at : at - 1));
  }
  return texts;
}

std::vector<std::string> take_errors() {
  const MutexLock lock(g_machine.mutex);
  return take_errors_locked();
}

Stats stats() {
  const MutexLock lock(g_machine.mutex);
  return g_machine.stats;
}

void reset_stats() {
  const MutexLock lock(g_machine.mutex);
  g_machine.stats = {};
}

void set_order(Order order) {
  const MutexLock lock(g_machine.mutex);
  g_machine.order = order;
  g_machine.order_is_set = true;
}

Order order() {
  const MutexLock lock(g_machine.mutex);
  order_from_environment();
  return g_machine.order;
}

bool checks_on() { return g_checks; }

}  // namespace tailrace::cuda::emulation
