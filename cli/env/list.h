// The facts of `tailrace env list` about environments and rewards, as text and as JSON.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sandbox/environment.h"
#include "sandbox/plugin/used_library.h"
#include "sandbox/registry.h"

namespace tailrace {

struct EnvFacts {
  std::string name, help;
  std::string library = {};  // file; empty: built in
  bool is_reward = false;
  // As it is with default settings; none: it cannot be made without settings, or is a reward.
  std::optional<sandbox::EnvironmentInfo> info = {};
  std::string why_no_info = {};
  sandbox::SettingsSchema settings = {};
};

std::vector<EnvFacts> facts_of(const sandbox::EnvironmentRegistry& built_in);
// Asks it in a process of its own.
std::vector<EnvFacts> facts_of(sandbox::UsedLibrary& library);

std::string env_facts_text(const std::vector<EnvFacts>& facts);
std::string env_facts_json(const std::vector<EnvFacts>& facts);  // a list, with a line's end

}  // namespace tailrace
