#include "sandbox/registry.h"

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"

namespace tailrace::sandbox {

namespace {

class LocalSource final : public EnvironmentSource {
 public:
  LocalSource(EnvironmentRegistry::Factory factory, const EnvironmentSettings& settings)
      : factory_(std::move(factory)), settings_(settings), info_(factory_(settings)->info()) {}

  const EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<Environment> open() const override { return factory_(settings_); }

 private:
  const EnvironmentRegistry::Factory factory_;
  const EnvironmentSettings settings_;
  const EnvironmentInfo info_;
};

}  // namespace

void EnvironmentRegistry::add(Declaration declared, Factory factory) {
  add(std::move(declared),
      Sources([factory = std::move(factory)](const EnvironmentSettings& settings) {
        return std::make_shared<LocalSource>(factory, settings);
      }));
}

void EnvironmentRegistry::add(Declaration declared, Sources sources) {
  const std::string name = declared.name;
  bool added = entries_.emplace(name, Entry{std::move(declared), std::move(sources)}).second;
  if (!added) throw UserError("the environment {} is registered twice; names are taken once", name);
}

std::shared_ptr<const EnvironmentSource> EnvironmentRegistry::source(
    const std::string& name, const EnvironmentSettings& settings) const {
  auto it = entries_.find(name);
  if (it != entries_.end()) return it->second.sources(settings);
  std::vector<std::string> names;
  for (const auto& [known, entry] : entries_) names.push_back(known);
  throw UserError("there is no environment '{}'{} Environments: {}", name,
                  did_you_mean(name, names), join_texts(names, ", "));
}

std::vector<Declaration> EnvironmentRegistry::list() const {
  std::vector<Declaration> all;
  for (const auto& [name, entry] : entries_) all.push_back(entry.declared);
  return all;
}

}  // namespace tailrace::sandbox
