#include "reward/registry.h"

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"

namespace tailrace {

void VerifierRegistry::add(std::string name, std::string help, std::unique_ptr<Verifier> verifier) {
  bool added = entries_.emplace(name, Entry{std::move(help), std::move(verifier)}).second;
  if (!added) throw UserError("the verifier {} is registered twice; names are taken once", name);
}

// For names that come in messages, which may be anything; at() is for those of a config.
const Verifier* VerifierRegistry::find(const std::string& name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : it->second.verifier.get();
}

const Verifier& VerifierRegistry::at(const std::string& name) const {
  if (const Verifier* verifier = find(name)) return *verifier;
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries_) names.push_back(known);
  throw UserError("there is no verifier '{}'{} Verifiers: {}, and those of a reward.plugin", name,
                  did_you_mean(name, names), join_texts(names, ", "));
}

std::vector<std::pair<std::string, std::string>> VerifierRegistry::list() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, entry] : entries_) names.emplace_back(name, entry.help);
  return names;
}

}  // namespace tailrace
