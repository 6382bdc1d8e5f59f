// Environments by name.
//
// Thread: any, once filled.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sandbox/environment_source.h"
#include "sandbox/settings_schema.h"

namespace tailrace::sandbox {

// Environments by name. Built by main and handed around; there is no global registry.
class EnvironmentRegistry {
 public:
  using Factory = std::function<std::unique_ptr<Environment>(const EnvironmentSettings&)>;
  using Sources =
      std::function<std::shared_ptr<const EnvironmentSource>(const EnvironmentSettings&)>;
  // Throws UserError for a name that is taken.
  void add(Declaration declared, Sources sources);
  // Adds an environment that is made here, and whose constructor is ours.
  void add(Declaration declared, Factory factory);
  // Throws UserError: an unknown name (with the nearest known), an unknown setting, a bad value.
  std::shared_ptr<const EnvironmentSource> source(const std::string& name,
                                                  const EnvironmentSettings& settings) const;
  // One to be played here and now.
  std::unique_ptr<Environment> make(const std::string& name,
                                    const EnvironmentSettings& settings) const {
    return source(name, settings)->open();
  }
  std::vector<Declaration> list() const;

 private:
  struct Entry {
    Declaration declared;
    Sources sources;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace tailrace::sandbox
