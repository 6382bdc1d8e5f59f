// JSON files that a person may have edited.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tailrace {

// Throws UserError for a file that cannot be read, is larger than `max_bytes`, is not JSON
// ("a/config.json:3:12: not JSON: ..."), or holds something else than an object.
nlohmann::json read_json_object(const std::filesystem::path& path,
                                int64_t max_bytes = int64_t{1} << 32);

// A file of ours that nobody may change: the text of `object` with a digest of itself. Throws
// UserError for one that cannot be read, or that was changed or damaged.
std::string to_proved_json(nlohmann::json object);
nlohmann::json read_proved_json(const std::filesystem::path& path);

}  // namespace tailrace
