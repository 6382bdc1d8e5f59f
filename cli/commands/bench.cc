#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/nearest.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Where the build puts the benches: bench/ beside this binary.
fs::path bench_folder() { return fs::read_symlink("/proc/self/exe").parent_path() / "bench"; }

std::vector<std::string> bench_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(bench_folder(), ignored)) {
    if (entry.is_regular_file() && ::access(entry.path().c_str(), X_OK) == 0)
      names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// A bench is a program of its own, so that measuring needs nothing of the binary that users run:
// this becomes it.
[[noreturn]] void become(const std::string& name, const std::vector<std::string>& arguments) {
  const fs::path program = bench_folder() / name;
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  throw UserError("{}", describe_errno("run", program, errno));
}

void run(const std::vector<std::string>& words) {
  const std::vector<std::string> names = bench_names();
  if (names.empty())
    throw UserError("there are no benches in {}.\n       Try 'make build'.",
                    bench_folder().string());
  if (words.empty()) {
    fmt::print("{}\n", fmt::join(names, "\n"));
    return;
  }
  if (std::ranges::find(names, words.front()) == names.end())
    throw UserError("there is no bench '{}'; the nearest is '{}'. Benches: {}", words.front(),
                    nearest_name(words.front(), names), fmt::join(names, ", "));
  become(words.front(), {words.begin() + 1, words.end()});
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Measure; without a name, list what can be measured");
  // All that follows belongs to the bench, its --help too.
  command->prefix_command();
  command->footer("Example:\n  tailrace bench rl-step --json");
  command->callback([command] { run(command->remaining()); });
}

}  // namespace tailrace
