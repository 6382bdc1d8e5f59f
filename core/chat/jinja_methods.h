// The methods of texts, dicts and loops. Those that would change a value are refused, as in Jinja's
// immutable sandbox.
//
// Thread: any.
#pragma once

#include <string_view>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

// Whether Python's value has this method; call_method() may refuse it nevertheless. A method hides
// a key of the same name: `tool.items` is the method.
bool has_method(const Value& value, std::string_view name);

Value call_method(const Value& self, std::string_view name, const Arguments& arguments,
                  Budget& budget);

}  // namespace tailrace::chat::jinja
