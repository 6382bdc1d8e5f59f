// A part of a JSON file that knows where it is, so that every complaint names the file and the
// part.
//
// Thread: any; borrows the document, which must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace tailrace::text {

class JsonPart {
 public:
  JsonPart(const nlohmann::json& value, std::string where)
      : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  bool has(const std::string& key) const;  // an object with this key, and not null
  // All below throw UserError when a key is missing (and no fallback is given) or has another type.
  JsonPart at(const std::string& key) const;
  std::vector<JsonPart> items() const;  // of an array
  std::string text() const;
  int64_t integer() const;
  bool flag() const;
  std::string text(const std::string& key) const { return at(key).text(); }
  std::string text(const std::string& key, const std::string& fallback) const;
  bool flag(const std::string& key, bool fallback) const;

  // "FILE: decoder[1].type is "CTC"; accepted: ..."
  [[noreturn]] void refuse(std::string_view accepted) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace tailrace::text
