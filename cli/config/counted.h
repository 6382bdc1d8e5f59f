// A number and its noun, as a sentence for a person has them: "1 turn", "3 turns", "2 batches".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace tailrace {

inline std::string counted(int64_t count, std::string_view one, std::string_view many = "") {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

}  // namespace tailrace
