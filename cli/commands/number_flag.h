// What a flag accepts as a number. CLI11's own ranges let "nan" pass, and its integers wrap around
// and read "010" as 8.
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/number.h"
#include "core/base/options.h"

namespace tailrace {

// For transform(), because they give back what they have read; check() would drop that. Bounds
// included.
inline CLI::Validator integer_from(int64_t min, int64_t max) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const auto value = parse_integer(text);
        if (!value || *value < min || *value > max)
          return fmt::format("{} is not an integer from {} to {}", text, min, max);
        text = fmt::format("{}", *value);
        return "";
      },
      fmt::format("{} to {}", min, max));
}

inline CLI::Validator number_from(double min, double max) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const auto value = parse_number(text);
        if (value && *value >= min && *value <= max) {
          text = fmt::format("{}", *value);
          return "";
        }
        return fmt::format("{} is not a number from {} to {}", text, format_bound(min),
                           format_bound(max));
      },
      fmt::format("{} to {}", format_bound(min), format_bound(max)));
}

// Of a --seed, as of run.seed.
inline CLI::Validator seed_flag() {
  return integer_from(0, static_cast<int64_t>(kMaxExactInteger));
}

}  // namespace tailrace
