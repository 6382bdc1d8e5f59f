#include "cli/config/foreign_names.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/config/datasets.h"
#include "cli/config/options.h"
#include "core/config/foreign_table.h"

namespace tailrace {
namespace {

// Parsed once, and kept: the rows borrow their texts.
const std::vector<ForeignTable>& tables() {
  static const std::vector<ForeignTable> parsed = [] {
    std::vector<ForeignTable> all;
    for (const EmbeddedFile& file : name_files())
      all.push_back(parse_foreign_table(std::string(file.text), std::string(file.path)));
    return all;
  }();
  return parsed;
}

std::vector<ForeignName> all_rows() {
  std::vector<ForeignName> rows;
  for (const ForeignTable& table : tables())
    rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  return rows;
}

constexpr std::string_view kRowsAlone =
    "a run that learns from sft.data alone ends with its epochs. Write sft.epochs.";
constexpr std::string_view kHeldOutRows =
    "write sft.eval_data, a file of held-out rows, and sft.eval_updates, or remove it.";
constexpr std::string_view kLongestRow =
    "write rollout.max_context_tokens, the longest row, and sft.too_long.";
constexpr std::string_view kKeepsTheBeginning =
    "a row that is cut keeps its beginning here, as with right. Write sft.too_long: cut, drop or "
    "refuse.";

// Texts that stand there instead of an advice with a key that has no effect there.
constexpr std::pair<std::string_view, std::string_view> kSupervisedTexts[] = {
    {"rollout.prompts_per_step",
     "an update takes whole rows of sft.batch_tokens together. Write that, or remove it."},
    {"rollout.max_prompt_tokens", kLongestRow},
    {"rollout.max_response_tokens", kLongestRow},
    {"env.eval_dataset", kHeldOutRows},
    {"eval.prompts", kHeldOutRows},
    {"eval.interval_steps", kHeldOutRows},
    {"env.dataset",
     "write sft.data, a JSONL file, and sft.columns where its columns have other "
     "names, or remove it."},
    {"checkpoint.interval_steps", "write sft.checkpoint_updates, or remove it."}};

// The text about an optimizer, in words of the section sft.
std::string_view supervised_text(std::string_view told) {
  static std::deque<std::string> kept;  // what the rows of supervised_names() borrow
  for (const auto& [key, instead] : kSupervisedTexts)
    if (told.find(key) != std::string_view::npos) return instead;
  std::string text(told);
  for (size_t at = 0; (at = text.find(" optim.", at)) != std::string::npos; at += 5)
    text.insert(at + 1, "sft.");
  return text == told ? told : std::string_view(kept.emplace_back(std::move(text)));
}

// Counts of updates, passes, rates and files mean there what they mean in the supervised trainer of
// a framework, whatever they are of samples.
ForeignName supervised(ForeignName row) {
  row.told = supervised_text(row.told);
  row.write = {}, row.note = {};  // they are about steps
  // Rows about prompts: such a run has none.
  if (std::ranges::any_of(row.values,
                          [](const ForeignValue& value) {
                            return value.also.find("env.too_long=") != std::string_view::npos;
                          }) &&
      row.key != "env.too_long") {
    row.key = {}, row.told = kLongestRow, row.values = {};
    return row;
  }
  const std::string_view key = supervised_key(row.key);
  if (key.empty() || row.key.starts_with("rollout.") || row.key == "eval.prompts") return row;
  const bool is_steps = row.key == "run.steps";
  if (row.key == "checkpoint.interval_steps" || row.key == "eval.interval_steps")
    row.values = {{.theirs = "-1", .told = "write 0 for the start and the end alone."},
                  {.theirs = "*"}};
  if (row.key == "run.epochs") row.values = {};
  // The beginning of a supervised row stays, in verl with `right`.
  if (row.key == "env.too_long" && row.name == "data.truncation")
    row.values = {{.theirs = "error", .ours = ""},
                  {.theirs = "right", .ours = "cut"},
                  {.theirs = "*", .told = kKeepsTheBeginning}};
  if (is_steps) row.values = {{.theirs = "-1", .ours = ""}, {.theirs = "*", .told = kRowsAlone}};
  for (ForeignValue& value : row.values) {
    value.told = supervised_text(value.told);
    if (value.also == "optim.min_lr_ratio=0") value.also = "sft.optim.min_lr_ratio=0";
  }
  row.key = key;
  row.only_with = {};
  return row;
}

std::vector<ForeignName> supervised_rows() {
  std::vector<ForeignName> rows;
  for (const ForeignName& row : foreign_names()) rows.push_back(supervised(row));
  return rows;
}

bool is_of(const ForeignName& row, std::string_view program) {
  return (", " + std::string(row.programs) + ",").find(fmt::format(", {},", program)) !=
         std::string::npos;
}

class OurKeys {
 public:
  OurKeys() : options_(options_by_key(RunOptions())) {
    for (const auto& [key, option] : options_)
      for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
        sections_.insert(key.substr(0, dot));
  }

  bool hold_all(const ConfigNode& section, const std::string& key) const {
    return std::ranges::all_of(section.entries, [&](const auto& entry) {
      // With dots it is no key of a file.
      return entry.first.find('.') == std::string::npos &&
             is_ours(entry.second, key.empty() ? entry.first : key + "." + entry.first);
    });
  }

 private:
  using Kind = ConfigNode::Kind;

  bool is_ours(const ConfigNode& node, const std::string& key) const {
    if (options_.contains(key))
      // No framework has names for what an environment reads, and for other maps they may have.
      return node.kind != Kind::kMap || node.entries.empty() || key.ends_with(".settings");
    if (!sections_.contains(key)) return false;
    if (node.kind == Kind::kMap) return hold_all(node, key);
    if (node.kind != Kind::kList) return node.kind == Kind::kNull;
    return std::ranges::all_of(node.items, [&](const ConfigNode& item) {
      return item.kind == Kind::kMap && hold_all(item, key + ".NAME");
    });
  }

  std::map<std::string, OptionDoc> options_;
  std::set<std::string> sections_;
};

// "`grpo`: `group_mean_std`" and what else a value of theirs says.
std::string value_text(const ForeignName& row, const ForeignValue& value) {
  std::string text;
  if (value.theirs != "*") text = fmt::format("`{}`: ", value.theirs);
  if (!value.told.empty() && value.wants.empty()) {
    std::string_view told = value.told;
    if (told.ends_with('.')) told.remove_suffix(1);
    return fmt::format("{}refused: {}", value.theirs == "*" ? "any other value is " : text, told);
  }
  if (value.ours.empty())
    text += "says nothing";
  else if (value.ours != "*")
    text += fmt::format("`{}`", value.ours);
  else if (value.theirs != "*")
    text += "the same";
  else if (row.values.size() > 1)
    text += "other values are the same";
  for (std::string_view also = value.also; !also.empty();) {
    const size_t blank = std::min(also.find(' '), also.size());
    const std::string_view setting = also.substr(0, blank);
    text += text.empty() || text.ends_with(": ") ? "sets " : ", sets ";
    text += setting.ends_with("=*")
                ? fmt::format("`{}` as well", setting.substr(0, setting.size() - 2))
                : fmt::format("`{}` as well", setting);
    also.remove_prefix(std::min(blank + 1, also.size()));
  }
  if (!value.wants.empty())
    text += fmt::format("{}only beside a value of `{}`", text.empty() ? "" : ", ", value.wants);
  return text;
}

// "`false`, `0`: says nothing".
std::string neutral_text(const ForeignName& row) {
  std::string values(row.neutral);
  for (size_t at = 0; (at = values.find(' ', at)) != std::string::npos; at += 4)
    values.replace(at, 1, "`, `");
  return fmt::format("`{}`: says nothing", values);
}

std::string meaning(const ForeignName& row) {
  if (row.key.empty()) {
    std::string_view told = row.told;
    if (row.neutral.empty()) return std::string(told);
    if (told.ends_with('.')) told.remove_suffix(1);
    return fmt::format("{}; {}", told, neutral_text(row));
  }
  std::string text;
  for (const ForeignValue& value : row.values) {
    const std::string one = value_text(row, value);
    if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
  }
  if (!row.only_with.empty()) {
    std::string settings(row.only_with);
    for (size_t at = 0; (at = settings.find(' ', at)) != std::string::npos; at += 7)
      settings.replace(at, 1, "` and `");
    text += fmt::format("{}only with `{}`", text.empty() ? "" : "; ", settings);
  }
  if (!row.needs.empty())
    text += fmt::format("{}only beside `{}`", text.empty() ? "" : "; ", row.needs);
  if (!row.neutral.empty())
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ",
                        row.needs.empty() ? "where nothing reads our key" : "without it",
                        neutral_text(row));
  if (!row.note.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", row.note);
  if (!row.several.empty())
    text += fmt::format("{}of several files: {}", text.empty() ? "" : "; ", row.several);
  return text;
}

// Empty: of all that have no table of their own.
std::string tables_of(std::string_view program) {
  std::string taken, refused;
  for (const ForeignName& row : foreign_names()) {
    const bool has_table = std::ranges::any_of(tables(), [&](const ForeignTable& table) {
      return !table.program.empty() && is_of(row, table.program);
    });
    if (program.empty() ? has_table : !is_of(row, program)) continue;
    const std::string name = program.empty() ? fmt::format("`{}` ({})", row.name, row.programs)
                                             : fmt::format("`{}`", row.name);
    if (row.key.empty())
      refused += fmt::format("| {} | {} |\n", name, meaning(row));
    else
      taken += fmt::format("| {} | `{}` | {} |\n", name, row.key, meaning(row));
  }
  return fmt::format(
      "\n## {}\n\n| taken | our key | values |\n| --- | --- | --- |\n{}\n"
      "| refused | what the error says |\n| --- | --- |\n{}",
      program.empty() ? "Others" : program, taken, refused);
}

constexpr const char* kIntroduction = R"(# Coming from another framework

`tailrace docs --names` writes this page; do not edit it. A config may say an option under the name
that TRL, verl, prime-rl or OpenRLHF has for it: at the top (`learning_rate: 1.0e-6`), nested as the
framework nests it (`actor_rollout_ref: {rollout: {n: 8}}`) or on the command line
(`actor_rollout_ref.rollout.n=8`). A name without dots is taken in the section of our key as well
(`optim.learning_rate`). [configs/trl_gsm8k.yaml](../configs/trl_gsm8k.yaml) is a GSM8K
script of TRL in ten lines.

- A name is taken only where its value means the same here. A note in the log says which key it was
  taken as, and `config.yaml` of the run has our keys alone.
- In a run that learns from `sft.data` alone the names of the optimizer, of epochs and of intervals
  are taken as the keys of `sft` (`learning_rate` as `sft.optim.lr`).
- Every other name of the tables is an error that says what to write. Nothing is ignored.
- A value of `null` or `None` leaves our key as it is, and so do an empty section and a value that
  switches nothing on (`push_to_hub: false`, `kl_loss_coef: 0.0` without its switch). `True` and
  `TRUE` are `true`.
- A name brings the defaults of its framework for what belongs to it, unless the config gives that
  itself: `advantage_estimator: gae` of OpenRLHF sets `algo.lambda` to 1. Where frameworks differ
  in such a default, the value has to be given.
- All refused and unknown names of a config are told together, each with its line, and where a
  setting of ours says the same, with that setting: a line to paste at the top of the file
  (`train.minibatches_per_step: 4`), or a word of the command line.
- Two names of one key in one file are an error that names both. The command line overrides a file
  under either name.
- A name that is in no table is an unknown key, which is an error as well. It names what is nearest,
  or what frameworks mean that have such a name in another section.

What a config leaves out has our default, which need not be theirs:

| key | default here | TRL | verl | OpenRLHF |
| --- | --- | --- | --- | --- |
)";

// Ours are looked up.
struct Default {
  std::string_view key, trl, verl, openrlhf;
};
constexpr Default kDefaults[] = {
    {"rollout.prompts_per_step", "from the device batch", "1024", "1024"},
    {"rollout.group_size", "8", "1", "1"},
    {"rollout.max_response_tokens", "256", "512", "1024"},
    {"algo.advantage", "`group_mean_std`", "GAE", "GAE"},
    {"algo.gamma", "1 (PPO)", "1", "1"},
    {"algo.lambda", "0.95 (PPO)", "1", "1"},
    {"algo.filter_zero_signal", "`none`", "`none`", "`none`"},
    {"algo.clip_high", "0.2", "0.2", "0.2"},
    {"algo.clip_c", "off", "3", "off"},
    {"algo.kl.coef", "0", "0", "0.01, in the reward"},
    {"algo.correction.kind", "leaves out sequences, with vLLM", "`none`", "`none`"},
    {"critic.lr", "that of the policy (PPO)", "1e-5, of a whole model", "9e-6, of a whole model"},
    {"critic.value_clip", "0.2 (PPO)", "0.5", "0.5"},
    {"optim.lr", "1e-6", "1e-6", "1e-6"},
    {"optim.betas", "[0.9, 0.999]", "[0.9, 0.999]", "[0.9, 0.95]"},
    {"optim.weight_decay", "0", "0.01", "0"},
    {"optim.schedule", "linear, to 0", "constant", "cosine, with a minimum"},
    {"checkpoint.interval_steps", "500", "never", "never"},
};

}  // namespace

std::span<const ForeignName> foreign_names() {
  static const std::vector<ForeignName> rows = all_rows();
  return rows;
}

std::span<const ForeignName> supervised_names() {
  static const std::vector<ForeignName> rows = supervised_rows();
  return rows;
}

bool has_only_our_keys(const ConfigNode& root) { return OurKeys().hold_all(root, ""); }

bool is_supervised(const ConfigNode& root) {
  const auto says = [&root](std::string_view section, std::string_view key) {
    const ConfigNode* node = root.find(section);
    if (node != nullptr) node = node->find(key);
    return node != nullptr && node->kind == ConfigNode::Kind::kScalar && !node->text.empty();
  };
  const ConfigNode* datasets = root.find("datasets");
  const ConfigNode* env = root.find("env");
  const bool has_command = env != nullptr && env->find("command") != nullptr;
  return says("sft", "data") && !says("preference", "data") && !says("reward_model", "data") &&
         !says("distill", "data") && !says("env", "name") && !says("env", "plugin") &&
         !has_command && (datasets == nullptr || datasets->kind == ConfigNode::Kind::kNull);
}

std::string coming_from_page() {
  std::string page = kIntroduction;
  const auto options = options_by_key(RunOptions());
  for (const Default& row : kDefaults)
    page += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", row.key,
                        options.at(std::string(row.key)).value, row.trl, row.verl, row.openrlhf);
  for (const ForeignTable& table : tables()) page += tables_of(table.program);
  return page;
}

}  // namespace tailrace
