#include "sandbox/registry.h"

#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/nearest.h"

namespace tailrace::sandbox {

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
  throw UserError("there is no environment '{}'{} Environments: {}", name,
                  did_you_mean(name, names), fmt::join(names, ", "));
}

std::vector<std::pair<std::string, std::string>> EnvironmentRegistry::list() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, entry] : entries_) names.emplace_back(name, entry.help);
  return names;
}

}  // namespace tailrace::sandbox
