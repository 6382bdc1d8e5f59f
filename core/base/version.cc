#include "core/base/version.h"

namespace tailrace {

std::string_view version() { return TAILRACE_VERSION; }

}  // namespace tailrace
