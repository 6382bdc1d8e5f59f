#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/config/foreign_names.h"
#include "cli/config/hardware_file.h"
#include "cli/config/options.h"
#include "cli/view/wrapped.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/config/config_printer.h"
#include "core/config/flags.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

// A table cell: "|" would end it.
std::string cell(std::string text) {
  // On behind the two characters that now stand there.
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.replace(at, 1, "\\|");
  return text;
}

// `resumes`: with a column for what a run that goes on may change.
std::string option_row(const OptionDoc& option, bool resumes) {
  std::string accepted =
      option.accepted.empty() ? option.type : fmt::format("{}, {}", option.type, option.accepted);
  std::vector<std::string> aliases;
  for (const auto& [alias, name] : option.aliases)
    aliases.push_back(fmt::format("{} = {}", alias, name));
  if (!aliases.empty()) accepted += fmt::format("; also {}", join_texts(aliases, ", "));
  std::string text = option.help;
  std::vector<std::string_view> names;
  for (const ForeignName& name : foreign_names())
    if (name.key == option.key) names.push_back(name.name);
  if (!names.empty()) text += fmt::format(" (also: {})", join_texts(names, ", "));
  const std::string resume =
      option.resume == Resume::kFixed ? "" : std::string(name_of(option.resume));
  return fmt::format("| `{}` | {} | {} |{} {} |\n", option.key,
                     option.required ? "required" : fmt::format("`{}`", cell(option.value)),
                     cell(accepted), resumes ? fmt::format(" {} |", resume) : "", cell(text));
}

// Keys that a person sets; the tables behind them have all. In the order of a config file.
constexpr std::string_view kEveryday[] = {"run.name",
                                          "run.steps",
                                          "run.seed",
                                          "model.path",
                                          "model.device",
                                          "lora.rank",
                                          "env.name",
                                          "env.dataset",
                                          "env.eval_dataset",
                                          "env.columns",
                                          "env.settings",
                                          "env.command",
                                          "reward.command",
                                          "rollout.prompts_per_step",
                                          "rollout.group_size",
                                          "rollout.max_prompt_tokens",
                                          "rollout.max_response_tokens",
                                          "rollout.max_turns",
                                          "rollout.sampling.temperature",
                                          "rollout.workers",
                                          "rollout.kv_cache_mb",
                                          "scheduler.mode",
                                          "algo.name",
                                          "algo.kl.coef",
                                          "optim.lr",
                                          "optim.schedule",
                                          "train.minibatches_per_step",
                                          "train.microbatch_tokens",
                                          "sft.data",
                                          "eval.prompts",
                                          "eval.interval_steps",
                                          "checkpoint.interval_steps"};

// Keys whose defaults are right for nearly every run. They keep their names; the page has them
// last.
constexpr std::string_view kExpert[] = {"rollout.block_tokens",
                                        "rollout.kv_cache_blocks",
                                        "rollout.store_turns_tokens",
                                        "train.gradient_slots",
                                        "train.rank_seconds",
                                        "scheduler.retries_env_failed",
                                        "scheduler.retries_verifier_failed",
                                        "scheduler.retries_lost",
                                        "scheduler.retries_returned",
                                        "scheduler.lease_seconds",
                                        "scheduler.install_seconds",
                                        "scheduler.reconnect_seconds",
                                        "scheduler.no_progress_seconds",
                                        "scheduler.save_seconds",
                                        "scheduler.quarantine_faults",
                                        "scheduler.quarantine_seconds",
                                        "scheduler.quarantine_longest_seconds",
                                        "scheduler.quarantine_limit",
                                        "scheduler.breaker_window",
                                        "scheduler.breaker_share_ratio",
                                        "scheduler.store_segment_bytes",
                                        "scheduler.journal_segment_bytes",
                                        "scheduler.archive",
                                        "scheduler.timeline_rows",
                                        "weights.anchor_interval",
                                        "files.max_row_mb",
                                        "files.max_file_mb"};

bool is_for_experts(const OptionDoc& option) {
  return std::ranges::find(kExpert, option.key) != std::end(kExpert);
}

std::string table_head(std::string_view title, const std::string& text, bool resumes) {
  return fmt::format("\n## {}\n\n{}\n| key | default | accepted |{} meaning |\n{}\n", title, text,
                     resumes ? " resume |" : "",
                     resumes ? "| --- | --- | --- | --- | --- |" : "| --- | --- | --- | --- |");
}

std::string expert_keys(const std::vector<SectionDoc>& sections) {
  std::string out =
      table_head("expert",
                 wrapped("Keys of the sections above that nearly every run leaves as they are: "
                         "deadlines, bounds and sizes of files."),
                 /*resumes=*/true);
  int64_t count = 0;
  for (const SectionDoc& section : sections)
    for (const OptionDoc& option : section.options) {
      if (!is_for_experts(option)) continue;
      out += option_row(option, /*resumes=*/true);
      ++count;
    }
  TR_CHECK(count == std::ssize(kExpert), "{} keys for experts are keys, of {}", count,
           std::ssize(kExpert));
  return out;
}

std::string everyday_keys(const std::vector<SectionDoc>& sections) {
  std::string out =
      "\n## The keys that most runs set\n\n" +
      wrapped("A run begins with some of these; each stands in the table of its section too.") +
      "\n| key | default | meaning |\n| --- | --- | --- |\n";
  for (const std::string_view key : kEveryday) {
    const OptionDoc* found = nullptr;
    for (const SectionDoc& section : sections)
      for (const OptionDoc& option : section.options)
        if (option.key == key) found = &option;
    TR_CHECK(found != nullptr, "{} is no key", key);
    out += fmt::format("| `{}` | `{}` | {} |\n", key, cell(found->value), cell(found->help));
  }
  return out;
}

// One table a section.
std::string tables_of_keys(const std::vector<SectionDoc>& sections, bool resumes) {
  std::string out;
  for (const SectionDoc& section : sections) {
    // It holds sections only, which have tables of their own, or nothing but keys for experts.
    if (std::ranges::all_of(section.options, is_for_experts)) continue;
    out += table_head(
        section.key.empty() ? "top" : section.key,
        wrapped(section.help.empty() ? "At the top of the file." : std::string(section.help) + "."),
        resumes);
    for (const OptionDoc& option : section.options)
      if (!is_for_experts(option)) out += option_row(option, resumes);
  }
  return out;
}

std::string configuration_reference() {
  std::string out =
      "# Configuration\n\n" +
      wrapped(
          "`tailrace docs` writes this page; do not edit it. A config is YAML. `extends: FILE` (or "
          "a list of files) takes the keys of another file, whose path is relative to this one, "
          "and overrides them key by key. At the top of a file `section.key: value` is the same as "
          "that key in its section. On the command line `section.key=value` overrides both; "
          "`datasets.NAME.ratio=2` changes one item of a list. Where one layer gives `model.path` "
          "and "
          "one above it `model.create`, or the other way round, the upper one replaces the lower "
          "one. An unknown key, a value out of "
          "range or a key without effect is an error that names the line. Some keys lose their "
          "effect "
          "because an override switches off what they belong to (`sft.demonstrations=0`); they go "
          "back to their defaults. Relative paths are relative to the file that holds them. The "
          "column `resume` says what a launch that continues a run may change; every other key "
          "keeps its value. Keys that hardly anybody needs stand last, "
          "under [expert](#expert).");
  // Options that nobody has set show the defaults.
  const std::vector<SectionDoc> sections = describe_options(RunOptions{});
  return out + everyday_keys(sections) + tables_of_keys(sections, /*resumes=*/true) +
         expert_keys(sections);
}

std::string hardware_reference() {
  return "# Hardware files\n\n" +
         wrapped(
             "`tailrace docs --hardware` writes this page; do not edit it. `tailrace plan CONFIG "
             "--hardware FILE` plans a run on hardware that a file describes "
             "([plan.md](plan.md#on-other-hardware), [simulate.md](simulate.md)). The file is YAML "
             "with these keys, read as strictly as a config; `extends: FILE` takes those of "
             "another "
             "one. On the command line they begin with `hardware.`: `hardware.workers=4`, "
             "`hardware.NAME.step_ms=8`. Relative paths are relative to the file.") +
         "\n" +
         wrapped(
             "An older config had these keys in a section `simulate`. Its lines can be moved to "
             "such a file as they are, without `simulate:` itself. The config of a run that has "
             "begun may have the section: it is left out.") +
         "\n## What comes along\n\n" +
         wrapped(
             "`tailrace plan --hardware list` shows these. Their numbers are those of the data "
             "sheets that [configs/hardware](../configs/hardware/README.md) cites; a price is an "
             "argument (`--price 2.49`).") +
         "\n```\n" + hardware_table() + "```\n" +
         tables_of_keys(describe_options(SimulateSection{}), /*resumes=*/false);
}

}  // namespace

void add_docs(Command& program) {
  // Shared with the action, which reads it long after this function has returned.
  struct Wanted {
    std::string target = "-";
    bool names = false, hardware = false;
  };
  auto wanted = std::make_shared<Wanted>();
  Command& command = program.command("docs", "Write the reference of all config keys");
  command.group(kForDevelopers);
  command.option("--names", wanted->names,
                 {.help = "the names that other frameworks have for them instead"});
  command.option("--hardware", wanted->hardware,
                 {.help = "the keys of hardware files instead", .excludes = {"--names"}});
  command.option("file", wanted->target, {.help = "where to; -: standard output", .value = "FILE"});
  command.footer(
      "Examples:\n  tailrace docs docs/configuration.md\n  tailrace docs --names "
      "docs/coming-from.md\n  tailrace docs --hardware docs/hardware.md");
  command.action([wanted] {
    const std::string text = wanted->names      ? coming_from_page()
                             : wanted->hardware ? hardware_reference()
                                                : configuration_reference();
    if (wanted->target == "-")
      fmt::print("{}", text);
    else if (auto written = write_file_atomic(wanted->target, text); !written)
      throw UserError("{}", written.failure().message);
    return kExitDone;
  });
}

}  // namespace tailrace
