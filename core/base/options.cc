#include "core/base/options.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tailrace {

std::string join_key(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

std::string format_bound(double value) {
  if (std::abs(value) <= kMaxExactInteger && value == std::floor(value))
    return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

std::string range_text(const OptionInfo& info) {
  bool low = std::isfinite(info.min), high = std::isfinite(info.max);
  if (low && high) return fmt::format("{} to {}", format_bound(info.min), format_bound(info.max));
  if (low) return fmt::format(">= {}", format_bound(info.min));
  if (high) return fmt::format("<= {}", format_bound(info.max));
  return "";
}

std::string choice_text(std::span<const std::string_view> names) {
  return fmt::format("one of: {}", fmt::join(names, ", "));
}

}  // namespace tailrace
