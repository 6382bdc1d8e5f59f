// The 128-bit digest (XXH3) that names a weight version or proves a block of bytes, as 32 hex
// digits.
#pragma once

#include <string>

namespace tailrace {

using Digest = std::string;

}  // namespace tailrace
