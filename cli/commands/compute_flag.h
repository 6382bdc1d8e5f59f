// The flag that says in which elements a command's weights are.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "core/base/enum_names.h"
#include "core/model/compute.h"

namespace tailrace {

inline void add_compute_flag(CLI::App& command, Compute& compute) {
  command
      .add_option_function<std::string>(
          "--compute", [&compute](const std::string& name) { compute = *value_of<Compute>(name); },
          "weights in f32 or bf16; auto: bf16 where the files are, else f32")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->type_name("TYPE")
      ->default_str("auto");
}

}  // namespace tailrace
