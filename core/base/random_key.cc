#include "core/base/random_key.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <sys/random.h>

#include "kernels/base/check.h"

namespace tailrace {

std::string random_key() {
  std::array<uint64_t, 2> bits{};
  TR_CHECK(::getrandom(bits.data(), sizeof bits, 0) == sizeof bits, "no random numbers: {}",
           std::strerror(errno));
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

bool is_key(std::string_view key, std::string_view said) {
  if (key.size() != said.size()) return false;
  unsigned char differs = 0;
  for (size_t i = 0; i < key.size(); ++i) differs |= static_cast<unsigned char>(key[i] ^ said[i]);
  return differs == 0;
}

}  // namespace tailrace
