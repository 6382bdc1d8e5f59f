// The environment `text`: a prompt from a dataset row, one turn, scored by a verifier.
//
// Task::data is the row, a JSON object; its "prompt" is the observation as it is. The evidence is
// the row with "response" added, so that a row carries whatever its verifier wants (an answer,
// required words).
#pragma once

#include "tailrace/library.h"

namespace tailrace::sandbox {

// A dataset may keep the prompt under another name: env.columns.
void declare_text_task(Library& library);

}  // namespace tailrace::sandbox
