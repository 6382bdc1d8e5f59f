// Prices to look up, several at once, and their total: calls of a tool, in the form of Hermes or of
// Llama 3 (core/chat/tool_calls.h).
//
//   buy milk and bread > <tool_call> {"name": "price", "arguments": {"item": "milk"}} </tool_call>
//                        <tool_call> {"name": "price", "arguments": {"item": "bread"}} </tool_call>
//   milk 3 bread 5 > total 8
//
// An answer with calls is told their results, all in one turn; whoever asks for one price a turn
// runs out of turns. An answer without calls ends the episode by the last whole number in it: the
// right total gives 1. A malformed call, or an answer with neither, is told `what ?` and costs
// `invalid_penalty`.
//
// form=words is plain text for a policy of model.create: each answer ends in a newline. The other
// forms are for the chat template of a model: the tool comes as a schema, and results are messages
// of the role tool.
#pragma once

#include "tailrace/library.h"

namespace tailrace::sandbox {

void declare_shopping(Library& library);

}  // namespace tailrace::sandbox
