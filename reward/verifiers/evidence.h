// Reads evidence: JSON that an environment wrote. It is data and may be anything.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace {

// A Failure when it is not a JSON object.
Result<nlohmann::json> parse_evidence(const std::string& evidence);

// None: absent or of another type.
std::optional<std::string> find_text(const nlohmann::json& evidence, const char* key);
std::optional<int64_t> find_integer(const nlohmann::json& evidence, const char* key);

// The answer of the policy: the part of "response" that follows the last </think>. A Failure when
// absent.
Result<std::string> final_response(const nlohmann::json& evidence);

}  // namespace tailrace
