// A file of the repository that the build puts into the binary (tailrace_embed in
// cmake/Tailrace.cmake), so that an installed binary needs no path to it.
//
// Thread: any.
#pragma once

#include <span>
#include <string_view>

namespace tailrace {

struct EmbeddedFile {
  std::string_view path;  // from the root of the repository
  std::string_view text;
};

}  // namespace tailrace
