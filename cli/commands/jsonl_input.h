// Rows of JSON objects from a stream, one a line, for the commands that read standard input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace {

class JsonlInput {
 public:
  // Borrows `stream`; `source` stands for it in messages ("stdin").
  JsonlInput(std::istream& stream, std::string source);

  static constexpr size_t kMaxRowBytes = size_t{64} << 20;

  // The next object; blank lines are skipped. Throws UserError ("stdin:3: not a JSON object: ..."),
  // also for a line of more than kMaxRowBytes, and for a standard input that cannot be read.
  std::optional<nlohmann::ordered_json> next();

  // Fields of a row. Each throws UserError with the line: missing, another type, an id out of
  // range.
  std::string text(const nlohmann::ordered_json& row, const std::string& key) const;
  std::vector<int32_t> ids(const nlohmann::ordered_json& row, const std::string& key) const;

  // "stdin:3", the line that next() gave last.
  std::string where() const;

 private:
  bool next_line(std::string& line);

  std::istream& stream_;
  std::string source_;
  int64_t line_ = 0;
};

}  // namespace tailrace
