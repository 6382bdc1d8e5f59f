// Keys that a JSON text has twice. The parser keeps the last of them and says nothing, and others
// keep the first.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// The first key that an object of `json` has twice, at any depth; empty: there is none. Of a text
// that is no JSON it says nothing.
std::string duplicate_key(std::string_view json);

}  // namespace tailrace
