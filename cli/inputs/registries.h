// The registries of a run: main builds them once, and every command gets them. What a config's
// libraries add, its run has beside that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/config/options.h"
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "sandbox/command/command_environment.h"
#include "sandbox/plugin/used_library.h"

namespace tailrace {

struct Registries {
  sandbox::EnvironmentRegistry environments;
  std::shared_ptr<const VerifierRegistry> verifiers;  // never null; outlives a score that hangs
  std::vector<std::shared_ptr<sandbox::UsedLibrary>> libraries = {};  // of a config
  std::vector<std::shared_ptr<sandbox::UsedProgram>> programs = {};   // of a config
};

inline Registries built_in_registries() {
  return {sandbox::built_in_environments(),
          std::make_shared<const VerifierRegistry>(built_in_verifiers()),
          {},
          {}};
}

// Where the libraries of a config are asked what they have, and where that plays.
enum class LibraryUse : uint8_t {
  kApart,  // both in processes of its own, whatever the config says: of a launch, which outlives it
  kHere,   // both in this process
  kOfRun,  // RUN/environments.json has the answers of its launch; they play as the config says
};

// With the environments and rewards of all libraries and programs that the options name. An
// environment that is the only one of its library, or of a program, gets its name in `options`,
// where none is given. `known`: of kOfRun,
// the file; without one they are asked in processes of their own. Throws UserError about the key: a
// library that cannot be loaded, a name that is taken.
Registries with_libraries(const Registries& built_in, RunOptions& options, LibraryUse use,
                          const std::filesystem::path& known = {});

// Writes RUN/environments.json: what the libraries and programs of a run say about themselves, each
// with the digest of its file. Nothing where it has none. Throws UserError.
void write_library_facts(const std::filesystem::path& file, const Registries& registries);

}  // namespace tailrace
