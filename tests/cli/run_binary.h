// Runs the real binary and gives back what it said.
#pragma once

#include <cstdlib>
#include <string>

#include <sys/wait.h>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {

struct BinaryResult {
  int exit_code = -1;
  std::string out, err;
};

// `arguments` as in a shell; `input` is its standard input, `directory` where it runs.
inline BinaryResult run_program(const std::string& program, const std::string& arguments,
                                const std::string& input = "", const std::string& directory = ".") {
  TemporaryDirectory folder;
  folder.write("in", input);
  std::string path = folder.path().string();
  int status = std::system(("cd " + directory + " && " + program + " " + arguments + " < " + path +
                            "/in > " + path + "/out 2> " + path + "/err")
                               .c_str());
  BinaryResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder / "out").value();
  result.err = read_file(folder / "err").value();
  return result;
}

inline BinaryResult run_binary(const std::string& arguments, const std::string& input = "",
                               const std::string& directory = ".") {
  return run_program(TAILRACE_BINARY, arguments, input, directory);
}

}  // namespace tailrace
