// The main() of every bench: the flags that all share, the report in the form that was asked for,
// and what an error is. Exit status 0: measured; 1: what was computed is wrong, or something broke;
// 2: a person must mend something, and one message says what.
//
//   int main(int argc, char** argv) {
//     Options options;
//     Program program("engine", TAILRACE_MEASURES, "engine --geometry tiny");
//     program.flags().option("--geometry", options.geometry, {.help = "..."});
//     return program.run(argc, argv, [&] { measure(options, program); });
//   }
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "bench/report/report.h"
#include "core/config/flags.h"
#include "core/model/placement.h"

namespace tailrace {

// What is fast and wrong is no result.
class WrongResult : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
void require(bool right, fmt::format_string<Args...> format, Args&&... args) {
  if (!right) throw WrongResult(fmt::format(format, std::forward<Args>(args)...));
}

class Program {
 public:
  // `measures`: one line; `example`: what follows "tailrace bench" in an example.
  Program(std::string name, const std::string& measures, const std::string& example);

  // Before run(). The bench has threads of its own, and no option for them; 0: it cannot say how
  // many.
  void fix_threads(int threads);
  // For the bench's own flags, before run().
  Command& flags() { return command_; }
  // Parses, calls `measure`, and gives back the exit status of main.
  int run(int argc, const char* const* argv, const std::function<void()>& measure);

  // Inside `measure`:
  int threads() const { return threads_; }
  bool json() const { return json_; }
  // `elements`: of the model that is measured, which the numerics class names.
  Report report(Settings settings, std::string device = "cpu", const Elements& elements = {}) const;

 private:
  std::string name_;
  Command command_;
  bool json_ = false;
  int threads_ = 2;  // the published results are of two
  bool fixed_threads_ = false;
};

}  // namespace tailrace
