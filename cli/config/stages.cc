#include "cli/config/stages.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

// "200 updates": a number and what it counts.
struct Until {
  int64_t count = 0;
  std::string unit;
};

std::vector<std::string> names_of(const std::vector<StageSection>& stages) {
  std::vector<std::string> names;
  for (const StageSection& stage : stages) names.push_back(stage.name);
  return names;
}

std::string item_of(const RunOptions& options, size_t index) {
  const std::vector<std::string> names = names_of(options.stages);
  return item_key("stages", names, index);
}

// Batches of a stage are cut before its first update, and lie in memory.
constexpr int64_t kMostUntil = 100'000'000;

std::optional<Until> read_until(const std::string& text) {
  Until until;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, until.count);
  const bool is_count = error == std::errc() && until.count >= 1 && until.count <= kMostUntil;
  if (!is_count || rest == end || *rest != ' ') return std::nullopt;
  until.unit.assign(rest + 1, end);
  if (!until.unit.ends_with('s')) until.unit += 's';
  return until;
}

// An end that is none was refused, or will be.
void end_by(const std::string& text, RowOptions& rows) {
  const std::optional<Until> until = read_until(text);
  if (!until) return;
  if (until->unit == "epochs") rows.epochs = until->count;
  if (until->unit == "updates") {
    rows.updates = until->count;
    // As many passes as it takes.
    rows.epochs = std::max(rows.epochs, until->count);
  }
}

bool learns(const SftOptions& sft) { return !sft.data.empty() || sft.demonstrations > 0; }
bool learns(const RowOptions& rows) { return !rows.data.empty(); }

// The sections of an item that say what it trains on.
std::vector<std::string_view> kinds_of(const StageSection& stage) {
  std::vector<std::string_view> kinds;
  if (learns(stage.sft)) kinds.emplace_back("sft");
  if (learns(stage.reward_model)) kinds.emplace_back("reward_model");
  if (learns(stage.preference)) kinds.emplace_back("preference");
  if (learns(stage.distill)) kinds.emplace_back("distill");
  return kinds;
}

bool is_rl(const StageSection& stage) { return kinds_of(stage).empty(); }

// `from`: the options of the run, or an item of the list.
void add(std::vector<RunStage>& stages, const std::string& name, const std::string& prefix,
         const auto& from) {
  const auto stage = [&](std::string_view kind, auto work) {
    // The second of a kind has a name of its own, since names are those of files.
    const std::string base = name.empty() ? std::string(kind) : name;
    std::string unique = base;
    for (int i = 2; std::ranges::find(stages, unique, &RowStage::name) != stages.end(); ++i)
      unique = fmt::format("{}_{}", base, i);
    RunStage made;
    made.name = std::move(unique);
    made.work = std::move(work);
    made.item = join_key(prefix, kind);
    stages.push_back(std::move(made));
  };
  if (learns(from.sft)) stage("sft", from.sft);
  if (learns(from.reward_model)) stage("reward_model", from.reward_model);
  if (learns(from.preference)) stage("preference", from.preference);
  if (learns(from.distill)) stage("distill", from.distill);
}

// Names are those of files and folders of the run, which has others beside them.
void validate_name(const std::string& name, const std::string& key) {
  constexpr std::string_view kTaken[] = {
      "adapter",      "agents",       "bundle",     "checkpoints", "config",    "demonstrations",
      "environments", "guests",       "hardware",   "inputs",      "journal",   "lock",
      "logs",         "machine",      "metrics",    "prompts",     "reference", "report",
      "roles",        "samples",      "simulation", "timeline",    "tokenizer", "traces",
      "trackers",     "trajectories", "weights"};
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  constexpr std::string_view kBegins[] = {"step_"}, kEnds[] = {"_eval", "_reference", "_teacher"};
  constexpr size_t kMostLetters = 64;
  if (name.find_first_not_of(kLetters) != std::string::npos || name.starts_with('-') ||
      name.size() > kMostLetters)
    throw UserError::at(
        key,
        "is '{}'; it names files of the run, and may have up to {} letters, digits, "
        "'_' and '-'. Try {}.",
        name, kMostLetters, "warm_up");
  const bool is_taken =
      std::ranges::find(kTaken, name) != std::end(kTaken) ||
      std::ranges::any_of(kBegins, [&](auto part) { return name.starts_with(part); }) ||
      std::ranges::any_of(kEnds, [&](auto part) { return name.ends_with(part); });
  if (is_taken)
    throw UserError::at(key, "is {}, which other files of the run are called. Try my_{}.", name,
                        name.substr(0, name.find('_')));
}

// An end that the stage's own keys say too.
void refuse_two_ends(const RunStage& stage, const Until& until, const std::string& key) {
  const RowOptions& rows = stage.rows();
  const bool epochs = until.unit == "epochs" && rows.epochs != RowOptions{}.epochs,
             updates = until.unit == "updates" && rows.updates != 0;
  if (epochs || updates)
    throw UserError::at(key, "and {} are both given. Leave one out.",
                        stage.key(epochs ? "epochs" : "updates"));
}

}  // namespace

std::string RunStage::key(std::string_view key) const { return join_key(item, key); }

bool RunStage::has_demonstrations() const {
  const auto* sft = std::get_if<SftOptions>(&work);
  return sft != nullptr && sft->demonstrations > 0;
}

std::vector<RunStage> stages_of(const RunOptions& options) {
  std::vector<RunStage> stages;
  if (options.stages.empty()) {
    add(stages, "", "", options);
    return stages;
  }
  for (size_t i = 0; i < options.stages.size(); ++i) {
    const StageSection& given = options.stages[i];
    const size_t before = stages.size();
    add(stages, given.name, item_of(options, i), given);
    for (size_t made = before; made < stages.size(); ++made)
      end_by(given.until, stages[made].rows());
  }
  return stages;
}

std::optional<int64_t> steps_of_stages(const RunOptions& options) {
  for (const StageSection& stage : options.stages) {
    if (!is_rl(stage)) continue;
    if (const std::optional<Until> until = read_until(stage.until)) return until->count;
    if (stage.rl.steps > 0) return stage.rl.steps;
  }
  return std::nullopt;
}

void set_steps_of_stages(RunOptions& options, int64_t steps) {
  for (StageSection& stage : options.stages) {
    if (!is_rl(stage)) continue;
    if (stage.until.empty())
      stage.rl.steps = steps;
    else
      stage.until = fmt::format("{} steps", steps);
  }
}

bool has_row_files(const RunOptions& options) {
  return std::ranges::any_of(stages_of(options),
                             [](const RunStage& stage) { return !stage.rows().data.empty(); });
}

void validate_stages(const RunOptions& options, bool has_environment) {
  const std::vector<RunStage> all = stages_of(options);
  const auto is_demonstrated = [](const RunStage& stage) { return stage.has_demonstrations(); };
  const auto first = std::ranges::find_if(all, is_demonstrated);
  if (first != all.end() && !has_environment)
    throw UserError::at(first->key("demonstrations"),
                        "are shown by an environment, and the run has none. Use {}, or write env.",
                        first->key("data"));
  if (std::ranges::count_if(all, is_demonstrated) > 1)
    throw UserError::at(first->key("demonstrations"),
                        "are given in two stages, and a run has one set of them. Leave one out.");
  const std::vector<StageSection>& stages = options.stages;
  std::set<std::string> names;
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string item = item_of(options, i);
    const std::vector<std::string_view> kinds = kinds_of(stages[i]);
    if (kinds.size() > 1)
      throw UserError::at(item, "trains on {}.data and on {}.data. Make two items of them.",
                          kinds[0], kinds[1]);
    if (is_rl(stages[i]) && !has_environment)
      throw UserError::at(
          item,
          "names no rows (sft.data, reward_model.data, preference.data or "
          "distill.data), and the run has no environment to sample in. Write one of them, or env.");
    if (is_rl(stages[i]) && i + 1 < stages.size())
      throw UserError::at(item,
                          "is the stage of reinforcement learning, or its rows are missing "
                          "(sft.data, reward_model.data, preference.data, distill.data). "
                          "Reinforcement learning is the last stage.");
    const std::string& name = stages[i].name;
    if (!name.empty()) validate_name(name, join_key(item, "name"));
    if (!name.empty() && !names.insert(name).second)
      throw UserError::at(join_key(item, "name"),
                          "is that of an earlier stage too. Give each stage a name of its own.");
    const std::string& text = stages[i].until;
    if (text.empty()) continue;
    if (stages[i].rl.steps > 0)
      throw UserError::at(join_key(item, "until"), "and rl.steps are both given. Leave one out.");
    const std::optional<Until> until = read_until(text);
    const bool counts =
        until && (is_rl(stages[i]) ? until->unit == "steps"
                                   : until->unit == "epochs" || until->unit == "updates");
    if (!counts)
      throw UserError::at(
          join_key(item, "until"), "is '{}'; it must be {}.", text,
          is_rl(stages[i]) ? "like '100 steps'" : "like '2 epochs' or '200 updates'");
    std::vector<RunStage> made;
    add(made, name, item, stages[i]);
    for (const RunStage& stage : made) refuse_two_ends(stage, *until, join_key(item, "until"));
  }
  if (has_environment && !stages.empty() && !is_rl(stages.back()))
    throw UserError::at("stages",
                        "ends without reinforcement learning, and the run has an environment. Add "
                        "an item 'rl: {{}}', or remove env.");
}

}  // namespace tailrace
