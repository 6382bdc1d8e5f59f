#include "core/text/row_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/base/machine.h"
#include "core/text/decompress.h"

namespace tailrace::text {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";

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
  const auto packing = packing_of(bytes.value());
  if (!packing) return bytes;
  const int64_t room = memory_facts().available_bytes;
  Result<std::string> text =
      decompress(*packing, bytes.value(), room > 0 ? std::min(max_bytes, room) : max_bytes);
  if (!text) return Failure{fmt::format("{}: {}", path.string(), text.failure().message)};
  return text;
}

}  // namespace tailrace::text
