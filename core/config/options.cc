#include "core/config/options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/join_texts.h"

namespace tailrace {

Idle idle_if(bool is_idle, std::string_view reason,
             std::initializer_list<std::string_view> deciders) {
  if (!is_idle) return {};
  return {.reason = std::string(reason), .deciders = {deciders.begin(), deciders.end()}};
}

std::string join_key(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

bool is_item_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && std::ranges::all_of(name, plain);
}

std::string item_key(std::string_view list, std::span<const std::string> names, size_t index) {
  const std::string& name = names[index];
  if (is_item_name(name) && std::ranges::count(names, name) == 1) return join_key(list, name);
  return fmt::format("{}[{}]", list, index);
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
  return fmt::format("one of: {}", join_texts(names, ", "));
}

}  // namespace tailrace
