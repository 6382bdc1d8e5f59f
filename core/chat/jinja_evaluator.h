// Renders a parsed template.
//
// Functions: range, dict, namespace, raise_exception, strftime_now.
//
// Thread: any; a body may be rendered by several threads at once.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/chat/jinja_ast.h"

namespace tailrace::chat::jinja {

using Variables = std::unordered_map<std::string, Value>;

// Throws Error, with its line, for what the template refuses and for what Python would: a use of
// something undefined, a wrong type. So does a render that needs more than Budget::kMaxSteps.
// `now` is what strftime_now() tells; a template that asks without one is refused.
std::string render(const Body& body, const Variables& variables, const std::optional<std::tm>& now);

}  // namespace tailrace::chat::jinja
