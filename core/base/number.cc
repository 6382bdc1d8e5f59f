#include "core/base/number.h"

#include <charconv>
#include <cmath>

namespace tailrace {
namespace {

template <class T>
std::optional<T> parse(std::string_view text) {
  // People and YAML write a plus, from_chars takes none.
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value = 0;
  // Not strtod(), which would read 0.5 by the rules of a locale.
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  const auto value = parse<double>(text);
  // from_chars also reads "inf" and "nan", which nobody wants.
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<int64_t> parse_integer(std::string_view text) { return parse<int64_t>(text); }

std::optional<bool> parse_boolean(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

}  // namespace tailrace
