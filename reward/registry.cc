#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "reward/countdown.h"
#include "reward/number.h"
#include "reward/text_rules.h"
#include "reward/verifier.h"

namespace tailrace {

void VerifierRegistry::add(std::string name, std::string help, std::unique_ptr<Verifier> verifier) {
  bool added = entries_.emplace(name, Entry{std::move(help), std::move(verifier)}).second;
  if (!added) throw UserError("the verifier {} is registered twice; names are taken once", name);
}

const Verifier* VerifierRegistry::find(const std::string& name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : it->second.verifier.get();
}

const Verifier& VerifierRegistry::at(const std::string& name) const {
  if (const Verifier* verifier = find(name)) return *verifier;
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries_) names.push_back(known);
  throw UserError("there is no verifier '{}'; did you mean '{}'? Verifiers: {}", name,
                  nearest_name(name, names), fmt::join(names, ", "));
}

std::vector<std::pair<std::string, std::string>> VerifierRegistry::list() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, entry] : entries_) names.emplace_back(name, entry.help);
  return names;
}

VerifierRegistry built_in_verifiers() {
  VerifierRegistry registry;
  registry.add("countdown", "a formula of the given numbers that reaches the target",
               make_countdown_verifier());
  registry.add("number", "the final number of the response is right", make_number_verifier());
  registry.add("text_rules", "required words, a full stop at the end, a bounded length",
               make_text_rules_verifier());
  return registry;
}

}  // namespace tailrace
