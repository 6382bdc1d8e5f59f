// The messages and tools of a chat request in one form, whatever form a client sent.
//
// Thread: any.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace tailrace::gateway {

// As ChatRequest::messages (chat_api.h) says. Throws Refused (api_error.h).
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& messages);

// As ChatRequest::tools says, of the whole request. Throws Refused.
std::string read_tools(const nlohmann::ordered_json& request);

}  // namespace tailrace::gateway
