// A Jinja template as statements: the grammar of Jinja2, less what chat templates have no use for.
//
// Statements: break, call, continue, filter, for, generation, if, macro, raw, set, with. Other
// statements, filters and tests are refused by name.
//
// Thread: any.
#pragma once

#include <string_view>

#include "core/chat/jinja_ast.h"

namespace tailrace::chat::jinja {

// `source` must be UTF-8. Throws Error, with its line; also for what is nested too deeply.
Body parse(std::string_view source);

}  // namespace tailrace::chat::jinja
