// The flags of commands that write to a policy as a run does: the section `chat` of a config.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/base/error.h"
#include "core/chat/options.h"

namespace tailrace {

// `variables` are read by set_variables(), once the flags are.
inline void add_chat_flags(CLI::App& command, chat::ChatOptions& options,
                           std::vector<std::string>& variables) {
  command
      .add_option("--chat-template", options.template_file,
                  "file with a chat template (Jinja) in the place of the model's own")
      ->type_name("FILE");
  command.add_option("--system", options.system, "system message where the messages have none")
      ->type_name("TEXT");
  command
      .add_option("--chat-variable", variables,
                  "other variable of the chat template, name=value, for example "
                  "enable_thinking=false")
      ->type_name("K=V");
}

// Throws UserError.
inline void set_variables(chat::ChatOptions& options, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0)
      throw UserError(
          "--chat-variable {}: a variable is written name=value, for example "
          "enable_thinking=false",
          text);
    options.variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
}

}  // namespace tailrace
