// Reads the keys of a Hugging Face JSON file; messages name the file and the key.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace {

// A key that changes the numbers, and its values that are built.
struct ConfigFeature {
  const char* key;
  const char* accepted;  // JSON list; empty: only null or no key at all
};

// All throw UserError. A key that is absent or null has no value: Hugging Face files use both for
// "default".
class ConfigReader {
 public:
  // `path` begins each message; borrows `json`, an object.
  ConfigReader(std::string path, const nlohmann::json& json)
      : path_(std::move(path)), json_(json) {}

  const nlohmann::json* find(const char* key) const;  // null: no value
  bool is_null(const char* key) const;                // it is there, as null
  int64_t integer(const char* key) const;             // which must be there
  int64_t integer(const char* key, int64_t fallback) const;
  double number(const char* key) const;
  double number(const char* key, double fallback) const;
  bool boolean(const char* key, bool fallback) const;
  // One token id, or a list of them; some files write -1 for none.
  std::vector<int64_t> tokens(const char* key) const;
  // An object, with messages that name it; the reader borrows it.
  ConfigReader inner(const char* key) const;
  void check(const ConfigFeature& feature) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const nlohmann::json& json_;
};

}  // namespace tailrace
