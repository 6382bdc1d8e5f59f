// The gateway's refusals, for people: an agent's client may show no more than "HTTP Error 400".
//
// Thread: any.
#pragma once

#include <string>

#include "core/base/counted_lines.h"
#include "rollout/gateway/api_error.h"

namespace tailrace::gateway {

// "400 response_format.type: 'json_object' is not supported", in a line and of bounded length: a
// client may have put anything into it.
std::string told(const ApiError& error);

// A kind is a status, a code and a field. Numbers in the field are left out: messages[7] is what
// messages[2] is.
void note_refusal(CountedLines& lines, const ApiError& error);

}  // namespace tailrace::gateway
