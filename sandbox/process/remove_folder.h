// Removes a folder that a program of somebody's own has worked in.
//
// Thread: any.
#pragma once

#include <filesystem>

#include "core/base/result.h"

namespace tailrace::sandbox {

// Also folders that the program has closed to its owner (chmod 500); no link is followed. One that
// is not there is removed. A Failure says what is left and why.
Result<void> remove_folder(const std::filesystem::path& folder);

}  // namespace tailrace::sandbox
