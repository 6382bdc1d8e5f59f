#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <sys/resource.h>

#include "cli/commands/commands.h"
#include "cli/inputs/registries.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/base/file.h"
#include "core/base/printable.h"
#include "core/base/progress.h"
#include "core/base/version.h"
#include "core/config/flags.h"
#include "kernels/base/isa.h"
#include "kernels/base/memory.h"
#include "kernels/cuda/provide.h"
#include "sandbox/plugin/host.h"

int main(int argc, char** argv) {
  using namespace tailrace;
  // The process of a library (sandbox/plugin/host.h): before anything else is made in it.
  if (argc == 4 && std::string_view(argv[1]) == "plugin-host")
    return sandbox::run_plugin_host(std::atoi(argv[2]), argv[3]);
  provide_cuda();
  Command program("tailrace", "Tailrace post-trains LLM agents with reinforcement learning.");
  program.version(std::string(version()));
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
  add_launch(program, registries);
  add_plan(program, registries);
  add_eval(program, registries);
  add_serve(program);
  add_env(program, registries);
  add_reward(program, registries);
  add_model(program);
  add_import(program);
  add_weights(program);
  add_status(program);
  add_report(program);
  add_worker(program, registries);
  add_doctor(program);
  add_bench(program);
  add_docs(program);
  add_old_names(program);
  // The progress of commands that bind no other: a role has its log, a launch its view.
  const SteadyClock clock;
  const ProgressScope progress([](const std::string& line) { fmt::print(stderr, "{}\n", line); },
                               clock);
  int status = kExitDone;
  try {
    if (const auto fault = isa_fault()) throw UserError("{}", *fault);
    status = program.run(argc, argv);
  } catch (const UserError& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n", printable(error.what()));
    return kExitUserError;
  } catch (const std::filesystem::filesystem_error& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n",
               printable(describe_errno("use", error.path1(), error.code().value())));
    // Else it may be the moment's: who is started again may find it gone.
    return error.code() == std::errc::filename_too_long ? kExitUserError : kExitFailed;
  } catch (const OutOfDeviceMemory& error) {
    std::fflush(stdout);
    fmt::print(stderr,
               "error: {}; try a smaller --kv-cache-mb where the command has it, or --device cpu "
               "('tailrace doctor' tells what is free)\n",
               error.what());
    return kExitFailed;
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
                 printable(error.what()));
      return kExitFailed;
    }
    fmt::print(stderr, "error: {}\n", printable(error.what()));
    return kExitFailed;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: unexpected: {}\n", printable(error.what()));
    return kExitFailed;
  }
  // A command that flushed each row itself has only left the mark of a failure.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fmt::print(stderr, "error: {}\n", describe_errno("write", "the output", errno));
    return kExitFailed;
  }
  return status;
}
