#include "core/chat/options.h"

namespace tailrace::chat {

void ChatOptions::visit(OptionVisitor& v) {
  const Idle plain = idle_if(style == Style::kPlain, "{style} is plain", {"style"});
  v.field("style", style,
          {.help = "auto: what environments say goes through the chat template (of chat.template, "
                   "or of the model) where there is one; plain: it goes to the policy as it is"});
  v.field("template", template_file,
          {.help = "file with a chat template (Jinja) in the place of the model's own; checkpoints "
                   "carry it",
           .path = true,
           .idle = plain});
  v.field("system", system,
          {.help = "system message in front of conversations that have none; empty: what the "
                   "template does without one",
           .idle = plain});
  v.field("variables", variables,
          {.help = "other variables of the template, for example enable_thinking: false",
           .idle = plain});
}

}  // namespace tailrace::chat
