// `tailrace simulate` was what `tailrace plan --hardware` is now.
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/run/hardware_file.h"
#include "core/base/error.h"
#include "core/base/flags.h"

namespace tailrace {
namespace {

// As a shell takes it for one word.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// "simulate.workers=4" as "hardware.workers=4", "simulate.hardware.h100.step_ms=8" as
// "hardware.h100.step_ms=8".
std::string new_override(const std::string& word) {
  constexpr std::string_view kOld = "simulate.", kList = "simulate.hardware.";
  if (word.starts_with(kList)) return word.substr(kOld.size());
  return word.starts_with(kOld) ? "hardware." + word.substr(kOld.size()) : word;
}

std::string plan_command(const std::vector<std::string>& words) {
  std::string command = "tailrace plan", config;
  bool is_value = false;  // of the option before
  for (const std::string& word : words) {
    const bool is_option = word.starts_with("--");
    const bool is_config = config.empty() && !is_option && !is_value && word.find('=') == word.npos;
    command += " " + shell_word(new_override(word));
    is_value = (word == "--modes" || word == "--out");
    if (!is_config) continue;
    config = word;
    command += " --hardware " + shell_word(hardware_beside(config).string()) + " --whole";
  }
  return config.empty() ? command + " CONFIG --hardware FILE --whole" : command;
}

}  // namespace

void add_simulate(Command& program) {
  program.moved("simulate", [](const std::vector<std::string>& words) -> int {
    throw UserError(
        "'tailrace simulate' is part of 'tailrace plan' now, and the section `simulate` of a "
        "config "
        "a hardware file (docs/hardware.md; 'tailrace plan --hardware list' shows what comes "
        "along).\n       Run: {}",
        plan_command(words));
  });
}

}  // namespace tailrace
