// Arguments of the calls in messages, in the form that a chat template takes: a text of JSON, as
// OpenAI's API has them, or an object, as Hugging Face has them.
//
// Thread: any.
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

namespace tailrace::chat {

enum class ArgumentsForm : uint8_t {
  kAsGiven,  // the template takes both
  kObjects,  // it writes JSON itself, and would quote a text again
  kTexts,    // it joins them to text, and fails for an object
};

// `messages`: a list of objects with a role. Throws UserError, naming the message and the call, for
// a text that is to become an object and is not exactly one strict JSON object (json_row.h), and
// for arguments that are to become a text and have what the JSON of a template cannot hold.
void bring_arguments_into(ArgumentsForm form, nlohmann::ordered_json& messages);

}  // namespace tailrace::chat
