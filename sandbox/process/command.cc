#include "sandbox/process/command.h"

#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/digest_of.h"
#include "sandbox/launcher/launcher.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// The PATH of an isolated program.
constexpr std::string_view kIsolatedPath = "/usr/local/bin:/usr/bin:/bin";

bool is_program(const fs::path& file) {
  std::error_code error;
  return fs::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
}

// The folder of the virtual environment (Python) that `program` belongs to, where isolated programs
// do not see it. Its packages lie there, though the program itself often is a link to /usr.
std::optional<fs::path> hidden_environment(const fs::path& program) {
  std::error_code error;
  const fs::path folder =
      fs::absolute(program, error).lexically_normal().parent_path().parent_path();
  if (!fs::exists(folder / "pyvenv.cfg", error) || shown_through(folder)) return std::nullopt;
  return folder;
}

std::string_view search_path(const CommandStart& command) {
  const char* own = std::getenv("PATH");
  return command.is_isolated || own == nullptr ? kIsolatedPath : std::string_view(own);
}

}  // namespace

std::string shown(const CommandStart& command) {
  std::string text;
  for (const std::string& word : command.words) {
    if (!text.empty()) text += ' ';
    text += word.starts_with('/') ? fs::path(word).filename().string() : word;
  }
  return text;
}

std::vector<size_t> run_files(const std::vector<std::string>& words) {
  std::vector<size_t> files;
  for (size_t i = 0; i < words.size(); ++i) {
    std::error_code error;
    // A name without a slash is one of PATH, or no file.
    if (words[i].find('/') == std::string::npos || !fs::is_regular_file(words[i], error)) continue;
    if (!shown_through(words[i])) files.push_back(i);
  }
  return files;
}

CommandStart with_digests(CommandStart command) {
  for (const size_t i : run_files(command.words)) {
    // One that cannot be read has none, and is told of when it is to be started.
    auto digest = digest_of_file(command.words[i]);
    command.digests[command.words[i]] = digest ? std::move(digest).value() : Digest();
  }
  return command;
}

Result<void> check_files(const CommandStart& command) {
  for (const auto& [file, then] : command.digests) {
    std::error_code error;
    const bool is_there = fs::exists(file, error);
    const auto now = digest_of_file(file);
    if (is_there && !now) return now.failure();
    if (!now || now.value() != then)
      return Failure{fmt::format("{} {} since the run began; put it back, or start a new run", file,
                                 is_there ? "has changed" : "is gone")};
  }
  return {};
}

Result<fs::path> find_program(const CommandStart& command) {
  const std::string& name = command.words.front();
  if (name.find('/') != std::string::npos) {
    if (const auto folder = hidden_environment(name); folder && command.is_isolated)
      return Failure{
          fmt::format("{} belongs to the virtual environment {}, which a sandbox does not "
                      "show: it shows /usr and the like. Have the packages below /usr "
                      "(python3 -m venv /usr/local/NAME), or run without a sandbox",
                      name, folder->string())};
    std::error_code error;
    // It may be started in another folder than ours.
    if (is_program(name)) return fs::absolute(name, error);
    return Failure{fs::exists(name, error)
                       ? fmt::format("{} cannot be executed. Try chmod +x {}, or name the program "
                                     "that reads it first: [python3, {}]",
                                     name, name, fs::path(name).filename().string())
                       : fmt::format("there is no {} on this machine", name)};
  }
  std::string_view path = search_path(command);
  while (!path.empty()) {
    const size_t end = path.find(':');
    const fs::path file = fs::path(path.substr(0, end)) / name;
    if (file.is_absolute() && is_program(file)) return file;
    path = end == std::string_view::npos ? std::string_view() : path.substr(end + 1);
  }
  return Failure{fmt::format("there is no program {} on this machine, as far as {} goes", name,
                             command.is_isolated ? kIsolatedPath : "PATH")};
}

Result<void> check_machine(const CommandStart& command) {
  if (const auto program = find_program(command); !program) return program.failure();
  return command.is_isolated ? check_isolation() : Result<void>();
}

}  // namespace tailrace::sandbox
