// Messages of a chat, as people and other programs write them.
//
// Thread: any.
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

#include "core/base/result.h"

namespace tailrace::text {

// Whether it is a list of messages ({"role", "content"}), at least one.
bool are_messages(const nlohmann::ordered_json& list);

// Makes the content of each message a text: a list of parts {"type": "text", "text": "..."} is
// joined. null, or none, stays where the assistant calls tools. Whether something was changed. A
// Failure names the message of any other content, which a template would write as Python does
// ("None", "[{'type': ...").
Result<bool> make_texts(nlohmann::ordered_json& messages);

// Leaves out the keys that are null in the arguments of calls (tool_calls, function_call), at any
// depth, and says how many: Parquet gives each struct of a column the keys of all of them.
// Arguments that are a text stay as they are.
int64_t leave_out_nulls(nlohmann::ordered_json& messages);
// The same in a list of schemas of tools.
int64_t leave_out_nulls_of_tools(nlohmann::ordered_json& tools);

}  // namespace tailrace::text
