#include "core/text/row_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/machine.h"
#include "core/base/nearest.h"
#include "core/text/decompress.h"
#include "core/text/utf8.h"

namespace tailrace::text {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";

// What is not read, and the command that unpacks it.
struct Unread {
  std::string_view magic, name, unpack;
};
constexpr Unread kUnread[] = {{std::string_view("\xFD"
                                                "7zXZ\0",
                                                6),
                               "xz", "xz -dc"},
                              {"BZh", "bzip2", "bzip2 -dc"},
                              {"PK\x03\x04", "zip", "unzip -p"}};

}  // namespace

Result<std::string> read_row_file(const std::filesystem::path& path, int64_t max_bytes) {
  Result<std::string> bytes = read_file(path, max_bytes);
  if (!bytes) return bytes;
  if (bytes.value().starts_with(kParquetMagic))
    return Failure{fmt::format(
        "{}: it is a Parquet file; rows are read from JSON Lines, plain, gzip or zstd.\n       Try "
        "'python3 {} {} {}'",
        path.string(), kParquetScript, path.string(),
        std::filesystem::path(path).replace_extension(".jsonl.gz").string())};
  for (const auto& [magic, name, unpack] : kUnread)
    if (bytes.value().starts_with(magic))
      return Failure{fmt::format(
          "{}: it is compressed by {}; rows are read from JSON Lines, plain, gzip or zstd.\n       "
          "Try '{} {} | gzip > rows.jsonl.gz'",
          path.string(), name, unpack, path.string())};
  const auto packing = packing_of(bytes.value());
  if (!packing) return bytes;
  const int64_t room = memory_facts().available_bytes;
  Result<std::string> text =
      decompress(*packing, bytes.value(), room > 0 ? std::min(max_bytes, room) : max_bytes);
  if (!text) return Failure{fmt::format("{}: {}", path.string(), text.failure().message)};
  return text;
}

std::string RowPlace::where() const { return fmt::format("{}:{}", file.string(), line); }

void RowPlace::fail(std::string_view what) const {
  throw UserError("{}: {}{}{}", where(), what, form.empty() ? "" : "; ", form);
}

void for_each_json_row(const std::filesystem::path& file, std::string_view form,
                       const std::function<void(const RowPlace&, nlohmann::ordered_json)>& take) {
  const Result<std::string> text = read_row_file(file);
  if (!text) throw UserError("{}{}", text.failure().message, missing_file_hint(file));
  LineReader lines(text.value());
  while (const auto line = lines.next()) {
    if (line->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    const RowPlace place{
        .file = file, .line = static_cast<int64_t>(line->number), .text = line->text, .form = form};
    // Before parsing, which would only say that it is not JSON.
    if (!is_utf8(line->text)) place.fail("the line is not UTF-8");
    Result<nlohmann::ordered_json> row = parse_json_row(line->text);
    if (!row) place.fail("the line is " + row.failure().message);
    take(place, std::move(row).value());
  }
}

}  // namespace tailrace::text
