#include "cli/commands/commands.h"
#include "core/config/flags.h"

namespace tailrace {

void add_model(Command& program) {
  Command& model = program.command(
      "model", "A model folder: check, score, tokenize, generate, merge with an adapter");
  add_model_check(model);
  add_model_score(model);
  add_model_tokenize(model);
  add_model_generate(model);
  add_model_merge(model);
}

}  // namespace tailrace
