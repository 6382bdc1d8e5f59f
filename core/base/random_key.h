// A key for a URL.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// 128 bits that nobody can guess, as 32 hexadecimal digits: for a key in a URL.
std::string random_key();

// Whether `said` is `key`. How long it takes does not tell how much of a guess is right.
bool is_key(std::string_view key, std::string_view said);

}  // namespace tailrace
