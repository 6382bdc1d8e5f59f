// Source of the files of a weight version.
//
// Thread: the one that stages; one call at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <utility>

#include "core/base/digest.h"
#include "core/base/result.h"

namespace tailrace {

// Makes the manifest of that name and its payload files of this machine, side by side, and says
// where the manifest lies. Proves nothing: who asked does that. When `stop` is requested nobody
// wants them any more, and it ends soon with any result.
using FetchWeights = std::function<Result<std::filesystem::path>(
    const std::string& manifest, const Digest& root, const std::stop_token& stop)>;

// Of files that lie in `folder` already.
inline FetchWeights weights_in(std::filesystem::path folder) {
  return [folder = std::move(folder)](const std::string& manifest, const Digest&,
                                      const std::stop_token&) -> Result<std::filesystem::path> {
    return folder / manifest;
  };
}

}  // namespace tailrace
