// The rules of a verifier for a row of data, asked when the data is read: a mistyped column would
// else be noticed by nothing but rewards that teach something else.
//
//   RowCheck row(text);
//   row.integer("max_words", 1, 1000);
//   return row.finish();  // the first thing that is wrong
//
// Asking for a column is what makes it known. Other columns may be there (an id, a source), but for
// one whose name is near to a known one: that is a slip of the pen.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/result.h"

namespace tailrace {

class RowCheck {
 public:
  explicit RowCheck(const std::string& row);  // JSON

  // Null: it is not there.
  const nlohmann::json* find(const std::string& column);
  const nlohmann::json& require(const std::string& column);  // null JSON when it is missing

  std::optional<int64_t> integer(const std::string& column, int64_t min, int64_t max);
  std::optional<std::string> text(const std::string& column);
  std::vector<std::string> texts(const std::string& column);

  // Notes a fault, for rules of the verifier's own.
  void refuse(const std::string& what);

  Result<void> finish();

 private:
  nlohmann::json row_;
  std::vector<std::string> known_ = {"prompt"};
  std::string fault_;
};

}  // namespace tailrace
