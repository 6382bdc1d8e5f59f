// Verifiers by name. A copy shares them.
//
// Thread: any, once filled.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reward/verifier.h"

namespace tailrace {

class VerifierRegistry {
 public:
  void add(std::string name, std::string help, std::unique_ptr<Verifier> verifier);
  const Verifier* find(const std::string& name) const;  // nullptr: unknown
  // Throws UserError, with the nearest known name.
  const Verifier& at(const std::string& name) const;
  std::vector<std::pair<std::string, std::string>> list() const;

 private:
  struct Entry {
    std::string help;
    std::shared_ptr<const Verifier> verifier;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace tailrace
