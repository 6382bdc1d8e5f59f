// Sockets that lie in the file system.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <filesystem>

namespace tailrace {

inline constexpr size_t kMaxSocketPath = 107;  // characters

// Whether a living process listens at `path`. Nobody does at a path that is too long.
bool somebody_listens(const std::filesystem::path& path);

}  // namespace tailrace
