#include "core/base/error.h"
#include "core/base/nearest.h"
#include "sandbox/calculator.h"
#include "sandbox/countdown.h"
#include "sandbox/environment.h"
#include "sandbox/frozen_grid.h"
#include "sandbox/text_task.h"

namespace tailrace {

void EnvironmentRegistry::add(std::string name, std::string help, Factory factory) {
  bool added = entries_.emplace(name, Entry{std::move(help), std::move(factory)}).second;
  if (!added) throw UserError("the environment {} is registered twice; names are taken once", name);
}

std::unique_ptr<Environment> EnvironmentRegistry::make(const std::string& name,
                                                       const EnvironmentSettings& settings) const {
  auto it = entries_.find(name);
  if (it != entries_.end()) return it->second.factory(settings);
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries_) names.push_back(known);
  throw UserError("there is no environment '{}'; did you mean '{}'? Environments: {}", name,
                  nearest_name(name, names), fmt::join(names, ", "));
}

std::vector<std::pair<std::string, std::string>> EnvironmentRegistry::list() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, entry] : entries_) names.emplace_back(name, entry.help);
  return names;
}

EnvironmentRegistry built_in_environments() {
  EnvironmentRegistry registry;
  registry.add("calculator", "arithmetic with a calculator tool, several turns", make_calculator);
  registry.add("countdown", "reach a target number with each given number once, one turn",
               make_countdown);
  registry.add("frozen_grid",
               "walk to the goal past holes seen only from next to them, several turns",
               make_frozen_grid);
  registry.add("text", "a dataset prompt, one turn, scored by a verifier", make_text_task);
  return registry;
}

}  // namespace tailrace
