#include "cli/view/run_facts.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "cli/view/config_value.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

constexpr double kFirstDate = 1e9;   // 2001
constexpr double kMostShown = 1e18;  // of bytes or milliseconds; more is nonsense

std::string model_of(const ConfigNode& config) {
  const std::string path = config_value(config, "model.path");
  if (!path.empty()) {
    const std::filesystem::path folder(path);
    // "models/x/" has no last part.
    return folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  }
  const std::string layers = config_value(config, "model.create.layers");
  // A simulation needs no model.
  if (layers.empty() || layers == "0") return "";
  return fmt::format("random weights, {} layers of {}", layers,
                     config_value(config, "model.create.hidden_size"));
}

// The keys that have other values than the preset gives, with an effect: "algo.clip_high 0.3".
std::vector<std::string> changes_of_preset(const ConfigNode& config) {
  const ConfigNode* section = config.find("algo");
  AlgoOptions own;
  try {
    if (section != nullptr) bind_config(*section, own);
  } catch (const UserError&) {
    return {};  // of an older build
  }
  AlgoOptions preset = AlgoOptions::preset(own.name);
  // 0 there is what follows from the run's limit of tokens, and the config has that instead.
  const auto follow = [](auto& of_preset, auto of_run) {
    if (of_preset == 0) of_preset = of_run;
  };
  follow(preset.aggregation.const_tokens, own.aggregation.const_tokens);
  follow(preset.length.limit, own.length.limit);
  follow(preset.length.buffer, own.length.buffer);
  const std::vector<SectionDoc> values = describe_options(own), standard = describe_options(preset);
  std::vector<std::string> changes;
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t k = 0; k < values[i].options.size(); ++k) {
      const OptionDoc& option = values[i].options[k];
      if (!option.idle && option.value != standard[i].options[k].value)
        changes.push_back(fmt::format("algo.{} {}", option.key, option.value));
    }
  }
  return changes;
}

// "grpo, async", "grpo with algo.clip_high 0.3; async"
std::string algorithm_of(const ConfigNode& config) {
  const std::string name = config_value(config, "algo.name"),
                    mode = config_value(config, "scheduler.mode");
  const std::vector<std::string> changes = changes_of_preset(config);
  std::string text = name;
  if (!name.empty() && !changes.empty()) text += fmt::format(" with {}", join_texts(changes, ", "));
  if (mode.empty() || text.empty()) return text + mode;
  return text + (text == name ? ", " : "; ") + mode;
}

// An environment, and the file that its prompts come from.
std::string data_of(const ConfigNode& dataset, std::string_view environment) {
  const std::string name = config_value(dataset, environment);
  const std::string file = std::filesystem::path(config_value(dataset, "dataset")).filename();
  return file.empty() ? name : fmt::format("{} ({})", file, name);
}

std::string dataset_of(const ConfigNode& config) {
  const ConfigNode* list = config.find("datasets");
  if (list != nullptr && !list->items.empty()) {
    std::string names;
    for (const ConfigNode& dataset : list->items)
      names += (names.empty() ? "" : ", ") + config_value(dataset, "name");
    return names;
  }
  const ConfigNode* environment = config.find("env");
  return environment == nullptr ? "" : data_of(*environment, "name");
}

std::string steps_of(const ConfigNode& config, std::span<const MetricsRow> rows) {
  const std::string all = config_value(config, "run.steps");
  // 0: the run ends with its data.
  return all.empty() || all == "0" ? fmt::format("{}", last_step(rows))
                                   : fmt::format("{} of {}", last_step(rows), all);
}

std::string batch_of(const ConfigNode& config) {
  const std::string prompts = config_value(config, "rollout.prompts_per_step");
  if (prompts.empty()) return "";
  return fmt::format("{} prompts x {} samples", prompts,
                     config_value(config, "rollout.group_size"));
}

// In UTC: whoever reads the page may be elsewhere.
std::string date_of(std::span<const MetricsRow> rows) {
  // The clock of a simulation begins at 0.
  if (rows.empty() || rows.front().unix_seconds < kFirstDate) return "";
  return fmt::format("{:%Y-%m-%d %H:%M} UTC",
                     fmt::gmtime(static_cast<std::time_t>(std::floor(rows.front().unix_seconds))));
}

// Bytes and time that a step's weights took to hosts elsewhere: medians, which the first version, a
// whole one, does not change.
std::string weights_of(std::span<const MetricsRow> rows) {
  std::vector<double> bytes, milliseconds;
  const auto take = [](const double* value, std::vector<double>& values) {
    if (value != nullptr && *value >= 0 && *value < kMostShown) values.push_back(*value);
  };
  for (const MetricsRow& row : rows) {
    take(row.find("weights/bytes_received"), bytes);
    take(row.find("weights/fetch_ms"), milliseconds);
  }
  if (bytes.empty() || milliseconds.empty()) return "";
  const auto median = [](std::vector<double>& values) {
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::ranges::nth_element(values, middle);
    return *middle;
  };
  return fmt::format("{} in {:.2f} s a step", format_bytes(static_cast<int64_t>(median(bytes))),
                     median(milliseconds) / 1e3);
}

// The trainings on rows of a config, each with its kind and its section.
std::vector<std::pair<std::string_view, const ConfigNode*>> stages_of(const ConfigNode& config) {
  std::vector<std::pair<std::string_view, const ConfigNode*>> stages;
  const auto add = [&](const ConfigNode& node) {
    for (const std::string_view kind : {"sft", "reward_model", "preference", "distill"}) {
      const ConfigNode* section = node.find(kind);
      if (section != nullptr && !config_value(*section, "data").empty())
        stages.emplace_back(kind, section);
    }
  };
  const ConfigNode* list = config.find("stages");
  if (list == nullptr || list->items.empty()) {
    add(config);
  } else {
    for (const ConfigNode& item : list->items) add(item);
  }
  return stages;
}

// A run of trainings on rows alone: it has no environment.
bool is_supervised(const ConfigNode& config) {
  const ConfigNode* list = config.find("datasets");
  return (list == nullptr || list->items.empty()) && config_value(config, "env.name").empty() &&
         !stages_of(config).empty();
}

std::string algorithm_of(std::string_view kind, const ConfigNode& section) {
  if (kind == "sft") return "supervised";
  if (kind == "distill") return fmt::format("distillation, {}", config_value(section, "loss"));
  return kind == "preference" ? fmt::format("preferences, {}", config_value(section, "loss"))
                              : "reward model";
}

std::vector<RunFact> supervised_facts(const ConfigNode& config, const std::string& machine,
                                      std::span<const MetricsRow> rows) {
  std::string algorithms, files, batches;
  for (const auto& [kind, section] : stages_of(config)) {
    const auto join = [](std::string& list, const std::string& text) {
      list += list.empty() ? text : ", then " + text;
    };
    join(algorithms, algorithm_of(kind, *section));
    join(files, std::filesystem::path(config_value(*section, "data")).filename());
    join(batches, kind == "sft" || kind == "distill"
                      ? fmt::format("{} tokens", config_value(*section, "batch_tokens"))
                      : fmt::format("{} rows", config_value(*section, "batch_rows")));
  }
  std::vector<RunFact> facts = {{"Model", model_of(config)},
                                {"Algorithm", algorithms},
                                {"Dataset", files},
                                {"Batch", batches},
                                {"Machine", machine},
                                {"Date", date_of(rows)},
                                {"Run", config_value(config, "run.name")},
                                {"Updates", fmt::format("{}", last_supervised_update(rows))},
                                {"Seed", config_value(config, "run.seed")}};
  std::erase_if(facts, [](const RunFact& fact) { return fact.value.empty(); });
  return facts;
}

}  // namespace

int64_t last_step(std::span<const MetricsRow> rows) {
  int64_t last = 0;
  for (const MetricsRow& row : rows)
    if (row.version >= 0) last = std::max(last, row.step);
  return last;
}

int64_t last_supervised_update(std::span<const MetricsRow> rows) {
  int64_t last = 0;
  for (const MetricsRow& row : rows)
    if (row.version < 0) last = std::max(last, row.step);
  return last;
}

std::vector<RunFact> run_facts(const std::string& config, const std::string& machine,
                               std::span<const MetricsRow> rows) {
  const ConfigNode root = read_config_text(config);
  if (is_supervised(root)) return supervised_facts(root, machine, rows);
  std::vector<RunFact> facts = {{"Model", model_of(root)},
                                {"Algorithm", algorithm_of(root)},
                                {"Dataset", dataset_of(root)},
                                {"Batch", batch_of(root)},
                                {"Machine", machine},
                                {"Date", date_of(rows)},
                                {"Run", config_value(root, "run.name")},
                                {"Steps", steps_of(root, rows)},
                                {"Weights to other hosts", weights_of(rows)},
                                {"Seed", config_value(root, "run.seed")}};
  std::erase_if(facts, [](const RunFact& fact) { return fact.value.empty(); });
  return facts;
}

}  // namespace tailrace
