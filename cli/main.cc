#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include "cli/commands/commands.h"
#include "cli/run/registries.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/base/file.h"
#include "core/base/nearest.h"
#include "core/base/version.h"
#include "core/text/utf8.h"
#include "kernels/base/isa.h"

namespace tailrace {
namespace {

// The parser would only say that a word was not expected.
void check_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return;
  throw UserError("there is no command '{}'; the nearest is '{}'. Commands: {}", word,
                  nearest_name(word, names), fmt::join(names, ", "));
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  CLI::App app("Tailrace post-trains LLM agents with reinforcement learning.", "tailrace");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  // A file that reaches its limit (ulimit -f) is a failure to write, which says so, and no death.
  // Inherited by the processes of a run.
  std::signal(SIGXFSZ, SIG_IGN);
  // A connection to the scheduler is a file, and ZeroMQ aborts when there are none left.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  // Here and nowhere else, so that reading main shows what can be named.
  const Registries registries = built_in_registries();
  add_launch(app, registries);
  add_eval(app, registries);
  add_generate(app);
  add_score(app);
  add_status(app);
  add_tokenize(app);
  add_report(app);
  add_trace(app);
  add_bench(app);
  add_doctor(app);
  add_worker(app, registries);
  add_docs(app);
  try {
    if (const auto fault = isa_fault()) throw UserError("{}", *fault);
    if (argc > 1) check_command(app, argv[1]);
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& end) {  // a command's own exit code
    return end.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "error: {}\n       Run 'tailrace --help' or 'tailrace COMMAND --help'.\n",
               text::printable(error.what()));
    return kExitUserError;
  } catch (const UserError& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n", text::printable(error.what()));
    return kExitUserError;
  } catch (const std::filesystem::filesystem_error& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n",
               text::printable(describe_errno("use", error.path1(), error.code().value())));
    // Else it may be the moment's: who is started again may find it gone.
    return error.code() == std::errc::filename_too_long ? kExitUserError : kExitFailed;
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    fmt::print(stderr,
               "error: there is not enough memory; free some, or raise its limit (ulimit "
               "-v, or that of the container)\n");
    return kExitFailed;
  } catch (const std::system_error& error) {  // fmt::print, on a full disk
    if (error.code() == std::errc::resource_unavailable_try_again) {
      std::fflush(stdout);
      fmt::print(stderr,
                 "error: {}; if a thread could not be started, raise the limit of processes "
                 "(ulimit -u) or of memory (ulimit -v)\n",
                 text::printable(error.what()));
      return kExitFailed;
    }
    fmt::print(stderr, "error: {}\n", text::printable(error.what()));
    return kExitFailed;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: unexpected: {}\n", text::printable(error.what()));
    return kExitFailed;
  }
  // A command that flushed each row itself has only left the mark of a failure.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "error: {}\n", describe_errno("write", "the output", errno));
    return kExitFailed;
  }
  return kExitDone;
}
