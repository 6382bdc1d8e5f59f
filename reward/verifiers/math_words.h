// Words behind a value: which of them are units, and which change the value.
//
// Thread: any.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// "5 hundredths", "5 squared" and "5 plus six" are not 5: number words, fractions and operators.
// In lower case.
bool changes_value(std::string_view word);

// The unit in its usual spelling: cm of "centimetres" and "cm". Empty: no unit of the list.
std::string unit_of(std::string_view word);

}  // namespace tailrace
