#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/run/options.h"
#include "core/base/config_printer.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/flags.h"

namespace tailrace {
namespace {

// A table cell: "|" would end it.
std::string cell(std::string text) {
  // On behind the two characters that now stand there.
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.replace(at, 1, "\\|");
  return text;
}

std::string option_row(const OptionDoc& option) {
  std::string accepted =
      option.accepted.empty() ? option.type : fmt::format("{}, {}", option.type, option.accepted);
  std::string text = option.help;
  if (!option.aliases.empty()) text += fmt::format(" (also: {})", fmt::join(option.aliases, ", "));
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", option.key,
                     option.required ? "required" : fmt::format("`{}`", cell(option.value)),
                     cell(accepted), option.resume == Resume::kFixed ? "" : name_of(option.resume),
                     cell(text));
}

std::string configuration_reference() {
  std::string out =
      "# Configuration\n\n"
      "Written by `tailrace docs`; do not edit. A config is YAML. `extends: FILE` (or a list) "
      "takes the keys of another file, relative\n"
      "to this one, and overrides them key by key. On the command line `section.key=value` "
      "overrides both; `datasets.NAME.ratio=2` changes one of a list.\n"
      "An unknown key, a value out of range or a key without effect is an error that names the "
      "line; keys that lose their "
      "effect because an override\n"
      "switches off what they belong to (`sft.demonstrations=0`) go back to their defaults. "
      "Relative paths are relative to the file\n"
      "that holds them. The column `resume` says what a launch that continues a run may change; "
      "every other key keeps its value.\n";
  // Options that nobody has set show the defaults.
  for (const SectionDoc& section : describe_options(RunOptions{})) {
    // It holds sections only, and these have tables of their own.
    if (section.options.empty()) continue;
    out += fmt::format(
        "\n## {}\n\n{}.\n\n| key | default | accepted | resume | meaning |\n"
        "| --- | --- | --- | --- | --- |\n",
        section.key.empty() ? "top" : section.key, section.help);
    for (const OptionDoc& option : section.options) out += option_row(option);
  }
  return out;
}

}  // namespace

void add_docs(Command& program) {
  // Shared with the action, which reads it long after this function has returned.
  auto target = std::make_shared<std::string>("-");
  Command& command = program.command("docs", "Write the reference of all config keys");
  command.option("file", *target, {.help = "where to; -: standard output", .value = "FILE"});
  command.footer("Example:\n  tailrace docs docs/configuration.md");
  command.action([target] {
    std::string text = configuration_reference();
    if (*target == "-")
      fmt::print("{}", text);
    else if (auto written = write_file_atomic(*target, text); !written)
      throw UserError("{}", written.failure().message);
    return kExitDone;
  });
}

}  // namespace tailrace
