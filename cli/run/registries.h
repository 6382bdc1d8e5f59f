// What a run can name: main builds it once, and every command gets it.
#pragma once

#include <memory>

#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"

namespace tailrace {

struct Registries {
  sandbox::EnvironmentRegistry environments;
  std::shared_ptr<const VerifierRegistry> verifiers;  // never null; outlives a score that hangs
};

inline Registries built_in_registries() {
  return {sandbox::built_in_environments(),
          std::make_shared<const VerifierRegistry>(built_in_verifiers())};
}

}  // namespace tailrace
