// JSON files that a person may have edited.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace {

// Throws UserError for a file that cannot be read, is larger than `max_bytes`, is not JSON
// ("a/config.json:3:12: not JSON: ..."), has a key twice in one object, or holds something else
// than an object.
nlohmann::json read_json_object(const std::filesystem::path& path,
                                int64_t max_bytes = int64_t{1} << 32);

// A file of ours that nobody may change: the text of `object` with a digest of itself. Throws
// UserError for one that cannot be read, or that was changed or damaged.
std::string to_proved_json(nlohmann::json object);
nlohmann::json read_proved_json(const std::filesystem::path& path);

// The same of a row in a file of rows: the text of an object with "proof" as its last member, a
// digest of what stands before it.
std::string to_proved_row(std::string object);
// Whether a row still is what to_proved_row() gave; one without a proof promises nothing. A
// Failure says that it is not.
Result<void> prove_row(std::string_view row);

}  // namespace tailrace
