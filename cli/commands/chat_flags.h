// The flags of commands that write to a policy as a run does: the section `chat` of a config.
#pragma once

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/chat/options.h"
#include "core/config/flags.h"

namespace tailrace {

// `variables` are read by set_variables(), once the flags are. `excludes`: options that none of
// these can stand beside.
inline void add_chat_flags(Command& command, chat::ChatOptions& options,
                           std::vector<std::string>& variables,
                           const std::vector<std::string>& excludes = {}) {
  command.option("--chat-template", options.template_file,
                 {.help = "file with a chat template (Jinja) in the place of the model's own",
                  .value = "FILE",
                  .excludes = excludes});
  command.option("--system", options.system,
                 {.help = "system message where the messages have none", .excludes = excludes});
  command.option("--chat-variable", variables,
                 {.help = "other variable of the chat template, name=value, for example "
                          "enable_thinking=false",
                  .value = "K=V",
                  .excludes = excludes});
  command.option("--chat-date", options.date,
                 {.help = "day that the chat template is told as today's, for example 2026-01-31",
                  .value = "DAY",
                  .excludes = excludes});
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
