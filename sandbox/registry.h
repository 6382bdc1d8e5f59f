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

#include "sandbox/environment.h"

namespace tailrace::sandbox {

// Makes environments by name. Built by main and handed around; there is no global registry.
class EnvironmentRegistry {
 public:
  using Factory = std::function<std::unique_ptr<Environment>(const EnvironmentSettings&)>;
  // Throws UserError for a name that is taken.
  void add(std::string name, std::string help, Factory factory);
  // Throws UserError: an unknown name (with the nearest known), an unknown setting, a bad value.
  std::unique_ptr<Environment> make(const std::string& name,
                                    const EnvironmentSettings& settings) const;
  std::vector<std::pair<std::string, std::string>> list() const;  // name, help

 private:
  struct Entry {
    std::string help;
    Factory factory;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace tailrace::sandbox
