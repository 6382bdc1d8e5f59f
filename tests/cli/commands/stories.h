// The small model of tests/data with which commands are tried, and what they write.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tailrace {

inline const std::string kData = std::string(TAILRACE_SOURCE_DIR) + "/tests/data";
inline const std::string kStories = kData + "/models/stories260K";

// One of each line.
inline std::vector<nlohmann::json> rows_of(const std::string& text) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace tailrace
