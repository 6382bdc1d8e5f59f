// The 128-bit digest (XXH3) that names a weight version or proves bytes, as 32 hex digits. They are
// computed in digest_of.h.
#pragma once

#include <string>

namespace tailrace {

using Digest = std::string;

}  // namespace tailrace
