#include "bench/report/program.h"

#include <cerrno>
#include <exception>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

int fail(int status, const std::string& message) {
  // Rows that were measured before it come out above the error.
  std::fflush(stdout);
  fmt::print(stderr, "error: {}\n", message);
  return status;
}

}  // namespace

Program::Program(std::string name, const std::string& measures, const std::string& example)
    : name_(std::move(name)), app_(measures, "tailrace bench " + name_) {
  app_.add_flag("--json", json_, "one JSON object a row instead of a table");
  app_.add_option("--threads", threads_, "threads to measure with")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app_.footer("Example:\n  tailrace bench " + example);
}

void Program::fix_threads(int threads) {
  app_.remove_option(app_.get_option("--threads"));
  threads_ = threads;
}

int Program::run(int argc, const char* const* argv, const std::function<void()>& measure) {
  try {
    app_.parse(argc, argv);
    measure();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error);  // --help
    return fail(2, fmt::format("{}\n       Run 'tailrace bench {} --help'.", error.what(), name_));
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const std::exception& error) {  // a WrongResult, a full disk
    return fail(1, error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return fail(1, describe_errno("write", "the output", errno));
  return 0;
}

Report Program::report(Settings settings) const {
  return Report(make_heading(name_, std::move(settings), threads_),
                json_ ? Report::Form::kJson : Report::Form::kTable, stdout);
}

}  // namespace tailrace
