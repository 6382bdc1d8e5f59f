#include "core/base/json_row.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_reader.h"
#include "core/base/json_text.h"

namespace tailrace {

using json = nlohmann::ordered_json;

Result<json> parse_json_row(std::string_view line, int64_t max_values) {
  auto [row, fault, wide_integer, num_steps] =
      read_ordered_json(line, {.max_values = max_values,
                               .max_depth = kMaxRowDepth,
                               .max_keys = kMaxRowKeys,
                               .refuses_doubled_keys = true});
  if (fault && (fault->kind == JsonFault::Kind::kLimit || fault->kind == JsonFault::Kind::kDouble))
    return Failure{std::move(fault->what)};
  if (fault) return Failure{"not valid JSON"};
  if (!row.is_object()) return Failure{"not a JSON object"};
  if (!wide_integer.empty())
    return Failure{
        fmt::format("too precise: the integer {}{} has more than 64 bits; write it as a "
                    "text",
                    wide_integer.substr(0, 40), wide_integer.size() > 40 ? "..." : "")};
  return std::move(row);
}

std::string json_of_field(const json& row, std::string_view key) {
  const auto field = row.find(key);
  if (field == row.end() || field->is_null()) return "";
  return field->is_string() ? field->get<std::string>() : json_text(*field);
}

}  // namespace tailrace
