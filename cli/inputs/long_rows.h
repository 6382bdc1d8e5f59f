// Rows of a file that are too long, as messages tell of them: all at once, so that a person need
// not launch once for each.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

struct LongRow {
  int64_t line = 0;    // in its file, from 1
  int64_t tokens = 0;  // that it has there
  int64_t bytes = 0;   // instead, of one that has too many of them to be encoded
  bool operator==(const LongRow&) const = default;
};

// "412 tokens", "2097152 bytes".
std::string size_of(const LongRow& row);
// Whether `a` is the shorter one: what is told in bytes is longer than what is told in tokens.
bool is_shorter(const LongRow& a, const LongRow& b);

// Rows that are listed one by one, unless a caller asks for more; the others are counted.
inline constexpr size_t kListedRows = 20;

struct LongRowRefusal {
  const std::filesystem::path& file;
  std::string_view noun;  // "row", "prompt"
  std::string limit;      // "at most 20 fit (KEY)"
  std::string advice;     // "Raise it, or ..."
};

// Throws UserError: "FILE:LINE: the ROW has 30 tokens; LIMIT", or a list of such lines of the `of`
// rows of the file.
[[noreturn]] void refuse_long(const LongRowRefusal& refusal, const std::vector<LongRow>& rows,
                              int64_t of);

// "lines 3 (412 tokens), 5 (98 tokens) and 7 more".
std::string list_lines(const std::vector<LongRow>& rows, size_t most = kListedRows);

}  // namespace tailrace
