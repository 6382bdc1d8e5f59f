#include <algorithm>
#include <string>
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

// "simulate CONFIG --modes sync" is "plan CONFIG --hardware FILE --whole --modes sync".
std::vector<std::string> whole_of_plan(const std::vector<std::string>& words) {
  std::vector<std::string> now;
  bool has_config = false, is_value = false;  // of the option before
  for (const std::string& word : words) {
    const bool is_option = word.starts_with("--");
    const bool is_config = !has_config && !is_option && !is_value && word.find('=') == word.npos;
    now.push_back(new_override(word));
    is_value = word == "--modes" || word == "--out";
    if (!is_config) continue;
    has_config = true;
    now.insert(now.end(), {"--hardware", hardware_beside(word).string(), "--whole"});
  }
  if (!has_config) now.insert(now.end(), {"CONFIG", "--hardware", "FILE", "--whole"});
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
