// The common part of the Metaspace of a pre-tokenizer and that of a decoder.
#pragma once

#include <cstdint>
#include <string>

#include "core/text/json_part.h"

namespace tailrace::text {

constexpr const char* kMetaspace = "\xE2\x96\x81";  // U+2581, in the place of a blank

// Before which stretches of text a blank is put that they do not have.
enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };

// "prepend_scheme", or "add_prefix_space" of older files.
inline PrependScheme parse_prepend_scheme(const JsonPart& part) {
  if (!part.has("prepend_scheme"))
    return part.flag("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  const std::string name = part.text("prepend_scheme");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  part.at("prepend_scheme").refuse("always, first, never");
}

}  // namespace tailrace::text
