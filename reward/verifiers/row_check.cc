#include "reward/verifiers/row_check.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

// The beginning of a value, for a message: enough to find it.
std::string shown(const nlohmann::json& value) {
  constexpr size_t kLongest = 40;
  const std::string text = json_text(value);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

}  // namespace

RowCheck::RowCheck(const std::string& row) : row_(parse_json(row)) {
  if (!row_.is_object()) refuse("it is not a JSON object");
}

void RowCheck::refuse(const std::string& what) {
  // It quotes what the row holds: a NUL would end the message.
  if (fault_.empty()) fault_ = printable(what);
}

const nlohmann::json* RowCheck::find(const std::string& column) {
  known_.push_back(column);
  const auto found = row_.find(column);
  return found == row_.end() ? nullptr : &*found;
}

const nlohmann::json& RowCheck::require(const std::string& column) {
  static const nlohmann::json nothing;
  const nlohmann::json* found = find(column);
  if (found == nullptr) refuse(fmt::format("there is no \"{}\"", column));
  return found == nullptr ? nothing : *found;
}

std::optional<int64_t> RowCheck::integer(const std::string& column, int64_t min, int64_t max) {
  const nlohmann::json* value = find(column);
  if (value == nullptr) return std::nullopt;
  const auto number =
      value->is_number_integer() ? std::optional(value->get<int64_t>()) : std::nullopt;
  if (!number || *number < min || *number > max)
    refuse(fmt::format("\"{}\" is {}; it must be an integer from {} to {}", column, shown(*value),
                       min, max));
  return number;
}

std::optional<std::string> RowCheck::text(const std::string& column) {
  const nlohmann::json* value = find(column);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  refuse(fmt::format("\"{}\" is {}; it must be a text", column, shown(*value)));
  return std::nullopt;
}

std::vector<std::string> RowCheck::texts(const std::string& column) {
  const nlohmann::json* value = find(column);
  if (value == nullptr) return {};
  if (value->is_array() &&
      std::ranges::all_of(*value, [](const auto& item) { return item.is_string(); }))
    return value->get<std::vector<std::string>>();
  refuse(fmt::format("\"{}\" is {}; it must be a list of texts", column, shown(*value)));
  return {};
}

Result<void> RowCheck::finish() {
  if (row_.is_object()) {
    for (const auto& [column, value] : row_.items()) {
      if (std::ranges::find(known_, column) != known_.end()) continue;
      const std::string nearest = nearest_name(column, known_);
      if (!nearest.empty())
        refuse(fmt::format("there is no column \"{}\"; did you mean \"{}\"?", column, nearest));
    }
  }
  return fault_.empty() ? Result<void>() : Failure{fault_};
}

}  // namespace tailrace
