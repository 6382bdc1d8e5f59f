#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/run/foreign_names.h"
#include "cli/run/options.h"
#include "cli/view/wrapped.h"
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
  std::vector<std::string> aliases;
  for (const auto& [alias, name] : option.aliases)
    aliases.push_back(fmt::format("{} = {}", alias, name));
  if (!aliases.empty()) accepted += fmt::format("; also {}", fmt::join(aliases, ", "));
  std::string text = option.help;
  std::vector<std::string_view> names;
  for (const ForeignName& name : foreign_names())
    if (name.key == option.key) names.push_back(name.name);
  if (!names.empty()) text += fmt::format(" (also: {})", fmt::join(names, ", "));
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", option.key,
                     option.required ? "required" : fmt::format("`{}`", cell(option.value)),
                     cell(accepted), option.resume == Resume::kFixed ? "" : name_of(option.resume),
                     cell(text));
}

std::string configuration_reference() {
  std::string out =
      "# Configuration\n\n" +
      wrapped(
          "`tailrace docs` writes this page; do not edit it. A config is YAML. `extends: FILE` (or "
          "a list of files) takes the keys of another file, whose path is relative to this one, "
          "and overrides them key by key. On the command line `section.key=value` overrides both; "
          "`datasets.NAME.ratio=2` changes one item of a list. Where one layer gives `model.path` "
          "and "
          "one above it `model.create`, or the other way round, the upper one replaces the lower "
          "one. An unknown key, a value out of "
          "range or a key without effect is an error that names the line. Some keys lose their "
          "effect "
          "because an override switches off what they belong to (`sft.demonstrations=0`); they go "
          "back to their defaults. Relative paths are relative to the file that holds them. The "
          "column `resume` says what a launch that continues a run may change; every other key "
          "keeps its value.");
  // Options that nobody has set show the defaults.
  for (const SectionDoc& section : describe_options(RunOptions{})) {
    // It holds sections only, and these have tables of their own.
    if (section.options.empty()) continue;
    out += fmt::format(
        "\n## {}\n\n{}\n| key | default | accepted | resume | meaning |\n"
        "| --- | --- | --- | --- | --- |\n",
        section.key.empty() ? "top" : section.key, wrapped(std::string(section.help) + "."));
    for (const OptionDoc& option : section.options) out += option_row(option);
  }
  return out;
}

}  // namespace

void add_docs(Command& program) {
  // Shared with the action, which reads it long after this function has returned.
  struct Wanted {
    std::string target = "-";
    bool names = false;
  };
  auto wanted = std::make_shared<Wanted>();
  Command& command = program.command("docs", "Write the reference of all config keys");
  command.option("--names", wanted->names,
                 {.help = "the names that other frameworks have for them instead"});
  command.option("file", wanted->target, {.help = "where to; -: standard output", .value = "FILE"});
  command.footer(
      "Examples:\n  tailrace docs docs/configuration.md\n  tailrace docs --names "
      "docs/coming-from.md");
  command.action([wanted] {
    const std::string text = wanted->names ? coming_from_page() : configuration_reference();
    if (wanted->target == "-")
      fmt::print("{}", text);
    else if (auto written = write_file_atomic(wanted->target, text); !written)
      throw UserError("{}", written.failure().message);
    return kExitDone;
  });
}

}  // namespace tailrace
