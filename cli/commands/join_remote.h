// A worker that joins a run of another host: `tailrace worker --join tcp://HOST:PORT`.
//
// Thread: the caller's.
#pragma once

#include <string>

#include "cli/inputs/registries.h"
#include "cli/roles/roles.h"
#include "core/base/exit_code.h"

namespace tailrace {

struct RemoteJoin {
  std::string address;          // tcp://HOST:PORT
  std::string key, server_key;  // files
  RoleKind kind = RoleKind::kRollout;
  std::string pool, cluster;
  std::string relay;     // tcp://HOST:PORT where it hands weights on; empty: it does not
  std::string work_dir;  // empty: default_work_directory()
  double rate_mbit = 0;  // of files; 0: as the link allows
  bool stays = false;    // waits for a run that is not there, and for the next one after its end
};

// Until the run ends or a person says so. Throws UserError.
ExitCode join_remote(const RemoteJoin& join, StatusPage& page, const Registries& registries);

}  // namespace tailrace
