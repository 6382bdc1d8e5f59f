// An environment of a library in this process, as an Environment.
//
// What comes from the library is copied at once and bounded: an observation or action of more than
// kMostObservationBytes is a Failure, and evidence of more than kMostEvidenceBytes.
#pragma once

#include <cstdint>
#include <memory>

#include "sandbox/environment.h"
#include "sandbox/plugin/library.h"

namespace tailrace::sandbox {

// An environment whose random choices each come from one number, as the ABI has them.
class LibraryEnvironment : public Environment {
 public:
  std::optional<std::string> demonstrate(Rng& rng) final { return demonstrate(number_of(rng)); }
  std::string sample_action(Rng& rng) final { return sample_action(number_of(rng)); }
  virtual std::optional<std::string> demonstrate(uint64_t random) = 0;
  virtual std::string sample_action(uint64_t random) = 0;

 private:
  static uint64_t number_of(Rng& rng) {
    const uint64_t high = rng.next_u32();
    return (high << 32) | rng.next_u32();
  }
};

// `settings` as complete_settings() gives them. Throws UserError: the library refuses them, or says
// nothing of use about itself.
std::unique_ptr<LibraryEnvironment> make_plugin_environment(
    std::shared_ptr<const PluginLibrary> library, const PluginLibrary::EnvironmentEntry& entry,
    const EnvironmentSettings& settings);

}  // namespace tailrace::sandbox
