// Verifiers score a finished episode from its evidence. They run in reward workers, under a
// deadline.
//
// A program or text under test that fails has failed its test (score 0). A verifier that cannot
// decide returns a Failure: that is `verifier_failed`, retried, and never a zero reward (design
// section 5).
//
// Thread: any; verifiers are immutable.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace tailrace {

struct Score {
  double reward = 0;
  std::vector<std::pair<std::string, double>> metrics;
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  // `evidence`: JSON that the environment wrote (with the response text in it).
  virtual Result<Score> score(const std::string& evidence) const = 0;
};

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
    std::unique_ptr<Verifier> verifier;
  };
  std::map<std::string, Entry> entries_;
};

// countdown, number, text_rules.
VerifierRegistry built_in_verifiers();

}  // namespace tailrace
