// Operators, members and indices of values, by Python's rules. Integers have 64 bits; a result that
// does not fit is refused. Every function throws Error where Python has a type error.
//
// Thread: any.
#pragma once

#include <string_view>

#include "core/chat/jinja_ast.h"
#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

Value calculate(Operator op, const Value& a, const Value& b, Budget& budget);  // kAdd to kPower
bool compare(Operator op, const Value& a, const Value& b, Budget& budget);     // kEqual to kNotIn
bool contains(const Value& container, const Value& item, Budget& budget);
Value negative(const Value& value);
Value positive(const Value& value);

// value.name: a method or member, else the item; undefined where there is neither.
Value attribute(const Value& value, std::string_view name, Budget& budget);
// value[index]: the item, else the member.
Value subscript(const Value& value, const Value& index, Budget& budget);
// value[begin:end:step]; None: left out.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step,
            Budget& budget);

}  // namespace tailrace::chat::jinja
