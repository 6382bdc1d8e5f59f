#include "core/base/json_row.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace {
namespace {

using json = nlohmann::ordered_json;

constexpr int kMaxRowDepth = 100;
constexpr size_t kMaxKeys = 10'000;

// Listens to the parser, whose result has forgotten what was there twice.
class RowWatch {
 public:
  // False: what begins here is left out.
  bool operator()(int depth, json::parse_event_t event, const json& value) {
    deepest_ = std::max(deepest_, depth);
    if (depth > kMaxRowDepth) return false;
    if (event == json::parse_event_t::object_start) names_[static_cast<size_t>(depth) + 1].clear();
    if (event == json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      auto& names = names_[static_cast<size_t>(depth)];
      const bool is_new = names.insert(name).second;
      if (!is_new && fault_.empty()) fault_ = fmt::format("ambiguous: it has \"{}\" twice", name);
      if (names.size() <= kMaxKeys) return true;
      if (fault_.empty())
        fault_ = fmt::format("too wide: an object has more than {} keys", kMaxKeys);
      return false;
    }
    return true;
  }

  // Empty: none.
  std::string fault() const {
    return deepest_ > kMaxRowDepth ? fmt::format("nested more than {} deep", kMaxRowDepth) : fault_;
  }

 private:
  int deepest_ = 0;
  std::string fault_;
  // By depth, of the object that is open there.
  std::vector<std::set<std::string>> names_ = std::vector<std::set<std::string>>(kMaxRowDepth + 2);
};

template <class Integer>
bool holds(std::string_view digits) {
  Integer value;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size();
}

// The first whole number of valid JSON that 64 bits do not hold; empty: none. The parser makes a
// float of it, which has other digits.
std::string_view wide_integer(std::string_view line) {
  for (size_t i = 0; i < line.size();) {
    if (line[i] == '"') {
      for (++i; i < line.size() && line[i] != '"'; ++i) i += line[i] == '\\';
      ++i;
    } else if (line[i] == '-' || (line[i] >= '0' && line[i] <= '9')) {
      const size_t end = std::min(line.find_first_not_of("+-.0123456789eE", i), line.size());
      const std::string_view number = line.substr(i, end - i);
      const bool whole = number.find_first_of(".eE") == std::string_view::npos;
      if (whole && !holds<int64_t>(number) && !holds<uint64_t>(number)) return number;
      i = end;
    } else {
      ++i;
    }
  }
  return {};
}

}  // namespace

Result<json> parse_json_row(std::string_view line) {
  RowWatch watch;
  const auto listen = [&](int depth, json::parse_event_t event, const json& value) {
    return watch(depth, event, value);
  };
  json row = json::parse(line, listen, /*allow_exceptions=*/false);
  // First: what is left out leaves no JSON.
  if (const std::string fault = watch.fault(); !fault.empty()) return Failure{fault};
  if (row.is_discarded()) return Failure{"not valid JSON"};
  if (!row.is_object()) return Failure{"not a JSON object"};
  if (const std::string_view number = wide_integer(line); !number.empty())
    return Failure{
        fmt::format("too precise: the integer {}{} has more than 64 bits; write it as a "
                    "text",
                    number.substr(0, 40), number.size() > 40 ? "..." : "")};
  return row;
}

std::string json_of_field(const json& row, std::string_view key) {
  const auto field = row.find(key);
  if (field == row.end() || field->is_null()) return "";
  return field->is_string() ? field->get<std::string>() : json_text(*field);
}

}  // namespace tailrace
