// The files and folders that a config names are read by folders that know no key.
//
// Thread: any.
#pragma once

#include <string_view>

#include "core/base/error.h"

namespace tailrace {

// The result of `read()`, which reads what `key` names: its mistakes are mistakes in that key.
template <class Read>
auto read_named(std::string_view key, const Read& read) {
  try {
    return read();
  } catch (const UserError& error) {
    if (!error.key().empty()) throw;
    throw UserError("{}: {}", key, error.what()).about(key);
  }
}

}  // namespace tailrace
