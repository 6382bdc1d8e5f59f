// What a run can name: main builds it once, and every command gets it. What a config's libraries
// add, its run has beside that.
#pragma once

#include <memory>

#include "cli/run/options.h"
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

// With the environments and rewards of all libraries that the options name. An environment that is
// the only one of its library gets its name in `options`, where none is given. Throws UserError
// about the key: a library that cannot be loaded, a name that is taken.
Registries with_libraries(const Registries& built_in, RunOptions& options);

}  // namespace tailrace
