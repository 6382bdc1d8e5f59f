// Messages of a chat, as people and other programs write them.
//
// Thread: any.
#pragma once

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

}  // namespace tailrace::text
