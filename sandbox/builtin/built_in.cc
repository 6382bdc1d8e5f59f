#include "sandbox/builtin/built_in.h"

#include "sandbox/builtin/calculator.h"
#include "sandbox/builtin/countdown.h"
#include "sandbox/builtin/frozen_grid.h"
#include "sandbox/builtin/paced.h"
#include "sandbox/builtin/text_task.h"

namespace tailrace::sandbox {

EnvironmentRegistry built_in_environments() {
  EnvironmentRegistry registry;
  registry.add(
      {"calculator", "arithmetic with a calculator tool, several turns", calculator_settings()},
      make_calculator);
  registry.add({"countdown", "reach a target number with each given number once, one turn",
                countdown_settings()},
               make_countdown);
  registry.add(
      {"frozen_grid", "walk to the goal past holes seen only from next to them, several turns",
       frozen_grid_settings()},
      make_frozen_grid);
  registry.add(
      {"paced", "repeat a word, over turns whose number and time are settings", paced_settings()},
      make_paced);
  registry.add({"text", "a dataset prompt, one turn, scored by a verifier", text_settings()},
               make_text_task);
  return registry;
}

}  // namespace tailrace::sandbox
