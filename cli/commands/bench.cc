#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/config/flags.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Where the build puts the benches: bench/ beside this binary.
fs::path bench_folder() { return fs::read_symlink("/proc/self/exe").parent_path() / "bench"; }

struct Bench {
  std::string name, measures;
  bool built = false;
};

// The build writes the list, a name and what it measures on a line; a program stands beside it once
// it is built.
std::vector<Bench> list_benches() {
  const auto list = read_file(bench_folder() / "benches.txt", 1 << 20);
  if (!list)
    throw UserError("{}\n       Benches are run where they are built.", list.failure().message);
  std::vector<Bench> benches;
  LineReader lines(list.value());
  while (const auto line = lines.next()) {
    const size_t tab = line->text.find('\t');
    if (tab == std::string_view::npos) continue;
    const std::string name(line->text.substr(0, tab));
    benches.push_back({.name = name,
                       .measures = std::string(line->text.substr(tab + 1)),
                       .built = ::access((bench_folder() / name).c_str(), X_OK) == 0});
  }
  return benches;
}

void print_benches(const std::vector<Bench>& benches) {
  for (const Bench& bench : benches)
    fmt::print("{:<12} {}{}\n", bench.name, bench.measures, bench.built ? "" : " (not built)");
}

// A bench is a program of its own, so that measuring needs nothing of the binary that users run:
// this becomes it.
[[noreturn]] void become(const std::string& name, const std::vector<std::string>& arguments) {
  const fs::path program = bench_folder() / name;
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  // execv() comes back only when it fails.
  throw UserError("{}", describe_errno("run", program, errno));
}

void run(const std::vector<std::string>& words) {
  const std::vector<Bench> benches = list_benches();
  if (words.empty()) return print_benches(benches);
  const auto bench = std::ranges::find(benches, words.front(), &Bench::name);
  if (bench == benches.end()) {
    std::vector<std::string> names;
    for (const Bench& known : benches) names.push_back(known.name);
    throw UserError("there is no bench '{}'{} Benches: {}", words.front(),
                    did_you_mean(words.front(), names), join_texts(names, ", "));
  }
  if (!bench->built)
    throw UserError("the bench '{}' is not built.\n       Try 'make build'.", bench->name);
  become(bench->name, {words.begin() + 1, words.end()});
}

}  // namespace

void add_bench(Command& program) {
  auto words = std::make_shared<std::vector<std::string>>();
  Command& command = program.command("bench", "Measure; without a name, list what can be measured");
  command.group(kForDevelopers);
  command.take_all(*words);
  command.footer("Example:\n  tailrace bench rl-step --json");
  command.action([words] {
    run(*words);
    return kExitDone;
  });
}

}  // namespace tailrace
