#include "bench/report/program.h"

#include <cerrno>
#include <exception>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/weights/manifest.h"

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
    : name_(std::move(name)), command_("tailrace bench " + name_, measures) {
  command_.option("--json", json_, {.help = "one JSON object a row instead of a table"});
  command_.footer("Example:\n  tailrace bench " + example);
}

void Program::fix_threads(int threads) {
  fixed_threads_ = true;
  threads_ = threads;
}

int Program::run(int argc, const char* const* argv, const std::function<void()>& measure) {
  if (!fixed_threads_)
    command_.option("--threads", threads_,
                    {.help = "threads to measure with", .min = 1, .max = 256});
  command_.action([&measure] {
    measure();
    return 0;
  });
  try {
    // Else --help, after which there is nothing to report.
    (void)command_.run(argc, argv);
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const std::exception& error) {  // a WrongResult, a full disk
    return fail(1, error.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return fail(1, describe_errno("write", "the output", errno));
  return 0;
}

Report Program::report(Settings settings, std::string device, const Elements& elements) const {
  Heading heading = make_heading(name_, std::move(settings), threads_);
  // The numerics class is that of the CPU; what a GPU computes with is among the settings.
  heading.numerics = device == "cpu" ? numerics_class(elements) : "gpu";
  heading.device = std::move(device);
  return Report(std::move(heading), json_ ? Report::Form::kJson : Report::Form::kTable, stdout);
}

}  // namespace tailrace
