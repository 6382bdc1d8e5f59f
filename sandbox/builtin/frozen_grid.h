// Navigation with holes and limited sight: the quickstart's task.
//
// A 6 x 6 grid; the agent sees the direction of the goal and the four cells next to it:
//
//   SW wall ice hole ice > left
//   SW wall ice ice ice > down
//
// Observation: a compass of two characters towards the goal (N or S, then E or W, `-` for neither),
// the up, right, down and left cells (ice hole goal wall), then `>`. After an invalid action `what
// ?` comes first. Action: exactly one of `up right down left` and a newline; anything else stays
// put, costs a turn and `invalid_penalty`. A step into a wall stays put and costs a turn. The goal
// ends the episode with 1, a hole with 0; after `max_turns` it is truncated with 0.
//
// Maps: start and goal uniform with Manhattan distance 4 to 9; every other cell is a hole with
// probability 0.5; all of it is drawn again until every cell that safe distance-reducing moves can
// reach from the start has another such move. So a memoryless careful walker always arrives.
// About 15.7 holes remain.
#pragma once

#include "tailrace/library.h"

namespace tailrace::sandbox {

void declare_frozen_grid(Library& library);

}  // namespace tailrace::sandbox
