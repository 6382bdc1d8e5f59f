// The tests, which stand behind `is`: "x is defined".
//
// boolean, callable, defined, divisibleby, eq, even, false, float, ge, gt, in, integer, iterable,
// le, lower, lt, mapping, ne, none, number, odd, sameas, sequence, string, true, undefined, upper,
// and the other names of the comparisons (==, equalto, greaterthan, lessthan, ...).
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

bool has_test(std::string_view name);
std::string test_names();  // "boolean, callable, ..."

// Throws Error for an unknown test, wrong arguments and values of a wrong type.
bool apply_test(std::string_view name, const Value& subject, const Arguments& arguments,
                Budget& budget);

}  // namespace tailrace::chat::jinja
