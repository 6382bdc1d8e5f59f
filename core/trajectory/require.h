// What a row of a file must hold, said to the reader of rows that catches it and names the line.
#pragma once

#include <stdexcept>

namespace tailrace {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace tailrace
