// Faults that come in their turn: with dice, now and then one of them would not come at all.
#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

namespace tailrace {

// In Python, the function call_number(): how often the processes of a program have called it
// before, which `file` says.
inline std::string call_number_in_python(const std::filesystem::path& file) {
  return fmt::format(R"(import os
def call_number():
    file = os.open("{}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b".")
    calls = os.lseek(file, 0, os.SEEK_CUR)
    os.close(file)
    return calls - 1
)",
                     file.string());
}

}  // namespace tailrace
