// Whether the versions in a folder are what they were when they were published: every byte of every
// manifest, payload and delta.
//
// Thread: any. A run may go on meanwhile: what it lets go or changes is no damage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tailrace {

struct VerifiedFolder {
  int64_t versions = 0;  // with a manifest
  int64_t whole = 0;     // of these, with their payload; deltas lead to the others
  int64_t deltas = 0;
  int64_t bytes = 0;  // that were proved
  // The damages, each with its file, and its tensor where it is one's: bytes that are not those
  // of the version, files and versions that are missing.
  std::vector<std::string> damages = {};
  // Versions that cannot be made again, because of one of the damages.
  std::vector<std::string> lost = {};
  // Files of the folder that belong to no version, as a process that was killed leaves them.
  std::vector<std::string> strays = {};
};

// All versions, or one of them and what leads to it. A version without its payload is made again,
// in `scratch`, a folder that holds two payloads at most. `progress` is told each file. Throws
// UserError where that folder is full.
VerifiedFolder verify_versions(const std::filesystem::path& folder, std::optional<int64_t> version,
                               const std::filesystem::path& scratch,
                               const std::function<void(const std::string& file)>& progress = {});

}  // namespace tailrace
