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

// The limits on what is read of a file. A limit that is passed ends the reading: of a line before
// the line is whole, of the text before it is unpacked.
struct RowLimits {
  int64_t max_row_bytes = int64_t{64} << 20;   // of a line
  int64_t max_text_bytes = int64_t{16} << 30;  // of all lines, unpacked
  // The keys or options that say them, for messages; empty: nothing does.
  std::string row_key = {}, text_key = {};
};

// The whole text. Its first bytes say whether it is compressed, not the name. A Failure names the
// file: as open_to_read(), compressed data that is damaged, cut or followed by something else, more
// text than the limits allow or than the free memory, a Parquet file (the Failure names the
// script), and a file of xz, bzip2 or zip (it names what to do).
Result<std::string> read_row_file(const std::filesystem::path& path, const RowLimits& limits = {});

// A line of a file, while for_each_json_row() gives it.
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
// skipped. No more than a line and a piece of the file is held. Throws UserError as read_row_file()
// fails, and with file:line for a line that is too long, is not UTF-8, or as parse_json_row()
// fails.
void for_each_json_row(
    const std::filesystem::path& file, std::string_view form,
    const std::function<void(const RowPlace& place, nlohmann::ordered_json row)>& take,
    const RowLimits& limits = {});

}  // namespace tailrace::text
