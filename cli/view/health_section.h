// The block at the top of the report: the numbers of the last step with a word each, and all that
// was found wrong.
//
// Thread: any.
#pragma once

#include <string>

#include "cli/view/health.h"

namespace tailrace {

// Empty for a run without steps.
std::string health_section(const Health& health);

}  // namespace tailrace
