// The filters, which stand behind `|`: "messages | length".
//
// abs, capitalize, count, d, default, dictsort, first, float, indent, int, items, join, last,
// length, list, lower, map, max, min, reject, rejectattr, replace, reverse, round, safe, select,
// selectattr, sort, string, sum, title, tojson, trim, unique, upper.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

bool has_filter(std::string_view name);
std::string filter_names();  // "abs, capitalize, ..."

// Throws Error for an unknown filter, wrong arguments and values of a wrong type.
Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments,
                   Budget& budget);

}  // namespace tailrace::chat::jinja
