// The text of a file of rows that a person brings: JSON Lines, plain or compressed by gzip or zstd.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace tailrace::text {

// The script that makes JSON Lines of a Parquet file, for messages.
inline constexpr std::string_view kParquetScript = "scripts/parquet_to_jsonl.py";

// The whole text. Its first bytes say whether it is compressed, not the name. A Failure names the
// file: as read_file(), compressed data that is damaged, cut or followed by something else, a text
// of more than `max_bytes` or than the free memory, and a Parquet file (the Failure names the
// script).
Result<std::string> read_row_file(const std::filesystem::path& path,
                                  int64_t max_bytes = int64_t{1} << 40);

}  // namespace tailrace::text
