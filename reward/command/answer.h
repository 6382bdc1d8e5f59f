// The answer of a program of reward.command about an episode: a line of its stdout.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/result.h"
#include "reward/verifier.h"

namespace tailrace {

struct CommandAnswer {
  int64_t id = 0;
  Result<Score> score;  // a Failure: the program says that it cannot score this one
};

// A Failure for a line that answers nothing: no JSON object, no id.
Result<CommandAnswer> parse_command_answer(std::string_view line);

}  // namespace tailrace
