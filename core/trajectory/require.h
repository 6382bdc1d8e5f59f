// The rules of a file's rows, said to the reader of rows that catches them and names the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace tailrace {

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// The parent that a segment continues: an earlier one, and no more than there is of it. `contexts`:
// tokens of the earlier ones with all that they continue. Gives that number for this one.
inline int64_t require_sound_parent(int32_t parent, int32_t parent_tokens,
                                    std::span<const int64_t> contexts, size_t own_tokens) {
  require(parent >= -1 && parent < std::ssize(contexts), "a parent is not an earlier segment");
  const int64_t available = parent < 0 ? 0 : contexts[static_cast<size_t>(parent)];
  require(parent_tokens >= 0 && parent_tokens <= available,
          "a segment continues more than its parent has");
  return parent_tokens + static_cast<int64_t>(own_tokens);
}

}  // namespace tailrace
