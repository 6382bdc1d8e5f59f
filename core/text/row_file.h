// The text of a file of rows that a person brings: JSON Lines, plain or compressed by gzip or zstd.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace::text {

// The script that makes JSON Lines of a Parquet file, for messages.
inline constexpr std::string_view kParquetScript = "scripts/parquet_to_jsonl.py";

// The whole text. Its first bytes say whether it is compressed, not the name. A Failure names the
// file: as read_file(), compressed data that is damaged, cut or followed by something else, a text
// of more than `max_bytes` or than the free memory, a Parquet file (the Failure names the script),
// and a file of xz, bzip2 or zip (it names what to do).
Result<std::string> read_row_file(const std::filesystem::path& path,
                                  int64_t max_bytes = int64_t{1} << 40);

// A line of a file, which the file outlives.
struct RowPlace {
  const std::filesystem::path& file;
  int64_t line;                // from 1
  std::string_view text;       // as the file has it
  std::string_view form = {};  // "each line must be ...", for messages; empty: nothing is added

  std::string where() const;  // "FILE:LINE"
  // Throws UserError: "FILE:LINE: what; form".
  [[noreturn]] void fail(std::string_view what) const;
};

// Gives all rows of a file of JSON Lines to `take`, in their order, each an object. Blank lines are
// skipped. Throws UserError as read_row_file() fails, and with file:line for a line that is not
// UTF-8 or as parse_json_row() fails.
void for_each_json_row(
    const std::filesystem::path& file, std::string_view form,
    const std::function<void(const RowPlace& place, nlohmann::ordered_json row)>& take);

}  // namespace tailrace::text
