// The environment `text`: a prompt from a dataset row, one turn, scored by a verifier.
//
// Task::data is the row, a JSON object; its "prompt" is the observation as it is. The evidence is
// the row with "response" added, so that a row carries whatever its verifier wants (an answer,
// required words).
#pragma once

#include <memory>

#include "sandbox/environment.h"
#include "sandbox/settings_schema.h"

namespace tailrace::sandbox {

const SettingsSchema& text_settings();
// A dataset may keep the prompt under another key: env.prompt_key.
std::unique_ptr<Environment> make_text_task(const EnvironmentSettings& settings);

}  // namespace tailrace::sandbox
