#include "core/base/random_key.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>

#include <fmt/format.h>
#include <sys/random.h>

namespace tailrace {

std::string random_key() {
  std::array<uint64_t, 2> bits{};
  if (::getrandom(bits.data(), sizeof bits, 0) != sizeof bits) {
    std::random_device device;
    for (uint64_t& word : bits) word = uint64_t{device()} << 32 | device();
  }
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

bool is_key(std::string_view key, std::string_view said) {
  if (key.size() != said.size()) return false;
  unsigned char differs = 0;
  for (size_t i = 0; i < key.size(); ++i) differs |= static_cast<unsigned char>(key[i] ^ said[i]);
  return differs == 0;
}

}  // namespace tailrace
