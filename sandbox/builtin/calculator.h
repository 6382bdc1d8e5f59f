// Arithmetic with a calculator tool, several turns.
//
//   solve 7 * 8 + 6 > calc 7 * 8 + 6
//   62 > answer 62
//
// Action: `calc` and an expression (observation: its value, or `error` when it has none or is not a
// whole number from 0 to max_number), or `answer` and a number, which ends the episode; anything
// else is answered `what ?`, costs a turn and `invalid_penalty`. Each action ends in a newline. A
// right answer gives 1.
//
// With `form` hermes or llama3 it speaks in messages: calls of the tool `calculator`, whose
// `expression` is answered in the same way, and any other text that holds a whole number is the
// answer: the last of them.
#pragma once

#include "tailrace/library.h"

namespace tailrace::sandbox {

void declare_calculator(Library& library);

}  // namespace tailrace::sandbox
