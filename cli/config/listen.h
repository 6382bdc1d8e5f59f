// Where workers of other hosts join a run: run.listen.
//
// Thread: any.
#pragma once

#include <string>

#include "cli/config/options.h"

namespace tailrace {

// The address for a worker elsewhere; the host is HOST where a person must say which of the
// machine's it is. Empty: run.listen is.
std::string address_to_join(const RunOptions& options);

// An address that is one, keys with it, and who scores episodes. Throws UserError.
void validate_listen(const RunOptions& options);

}  // namespace tailrace
