#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/config/hardware_file.h"
#include "core/config/flags.h"

namespace tailrace {
namespace {

// "trace RUN prompt=12 --json" is "status RUN --sample prompt=12 --json".
std::vector<std::string> sample_of_status(std::vector<std::string> words) {
  // Behind the sample, whose words an option would end.
  const auto options = std::ranges::stable_partition(
      words, [](const std::string& word) { return !word.starts_with('-'); });
  const auto places = static_cast<size_t>(options.begin() - words.begin());
  if (places == 0 && options.empty()) return {"RUN", "--sample", "KEY"};
  if (places == 1) words.insert(words.begin() + 1, "KEY");
  if (places > 0) words.insert(words.begin() + 1, "--sample");
  return words;
}

// "simulate.workers=4" as "hardware.workers=4", "simulate.hardware.h100.step_ms=8" as
// "hardware.h100.step_ms=8".
std::string new_override(const std::string& word) {
  constexpr std::string_view kOld = "simulate.", kList = "simulate.hardware.";
  if (word.starts_with(kList)) return word.substr(kOld.size());
  return word.starts_with(kOld) ? "hardware." + word.substr(kOld.size()) : word;
}

// "simulate CONFIG --modes sync KEY=VALUE" is "plan CONFIG KEY=VALUE --hardware FILE --whole
// --modes sync": --modes takes all words behind it.
std::vector<std::string> whole_of_plan(const std::vector<std::string>& words) {
  std::string config;
  std::vector<std::string> overrides, options;
  bool is_value = false;  // of the option before
  for (const std::string& word : words) {
    const bool is_option = word.starts_with("--"), is_override = word.find('=') != word.npos;
    if (!is_option && is_override)
      overrides.push_back(new_override(word));
    else if (!is_option && !is_value && config.empty())
      config = word;
    else
      options.push_back(word);
    is_value = word == "--modes" || word == "--out";
  }
  std::vector<std::string> now = {config.empty() ? "CONFIG" : config};
  now.insert(now.end(), overrides.begin(), overrides.end());
  now.insert(now.end(),
             {"--hardware", config.empty() ? "FILE" : hardware_beside(config).string(), "--whole"});
  now.insert(now.end(), options.begin(), options.end());
  return now;
}

}  // namespace

void add_old_names(Command& program) {
  for (const char* name : {"score", "tokenize", "generate", "merge"})
    program.moved(name, std::string("model ") + name);
  program.moved("keys", "worker keys");
  program.moved("simulate", "plan", whole_of_plan);
  program.moved("trace", "status", sample_of_status);
}

}  // namespace tailrace
