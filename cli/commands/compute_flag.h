// The flag that says in which elements a command's weights are.
#pragma once

#include "core/base/flags.h"
#include "core/model/compute.h"

namespace tailrace {

inline void add_compute_flag(Command& command, Compute& compute) {
  command.option("--compute", compute,
                 {.help = "weights in f32 or bf16; auto: bf16 where the files are, else f32"});
}

}  // namespace tailrace
