// Text that is compressed by gzip or zstd, told by its first bytes.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/base/result.h"

namespace tailrace::text {

enum class Packing : uint8_t { kGzip, kZstd };
constexpr auto enum_names(Packing) {
  return name_table<Packing>({{Packing::kGzip, "gzip"}, {Packing::kZstd, "zstd"}});
}

// Nothing: the bytes are as they are.
std::optional<Packing> packing_of(std::string_view bytes);

// The whole text; several members or frames, one behind the other, are one. A Failure says what is
// wrong with the data (damaged, cut, followed by something else), or that it is more than
// `max_bytes` of text: a small file may stand for more than there is room for.
Result<std::string> decompress(Packing packing, std::string_view bytes, int64_t max_bytes);

}  // namespace tailrace::text
