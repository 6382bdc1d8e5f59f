// Verifier `program`: does the program in the response do what it should?
//
// Evidence: {"tests": [{"stdin": "2 3\n", "stdout": "5\n"}, ...], "language": "python", "response":
// "..."}. The program is the last code block of the response between ``` fences (CommonMark 4.5),
// one that is not closed to its end, or the whole response where there are no fences, after the
// last </think>.
// "language": "python" (the default; python3) or "sh". It runs once for each test, isolated and
// under limits (sandbox/launcher), and passes when it exits with 0 and has written what "stdout"
// says, but for blanks at the ends of lines and empty lines at the end. Score: 1 when it passes all
// tests, else 0; the first that it fails is the last that is run.
//
// A test has an adaptive deadline (deadlines.h), learned from the programs that passed all tests of
// the row. A program over it, over its memory or over its output has failed. All tests together
// have nine tenths of the budget of a score, and a program over those has failed the test that it
// was in. The last tenth is for what it cannot help, to set it up and to end it: a program that was
// stopped because that took more is a Failure, since nobody knows whether it would have passed.
//
// Metrics: success, tests_passed (share), slowest_test_seconds (of those that were run),
// over_deadline.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "reward/verifier.h"
#include "reward/verifiers/deadlines.h"
#include "sandbox/launcher/launcher.h"

namespace tailrace {

using RunProgram = std::function<Result<sandbox::ProgramRun>(const sandbox::Program&,
                                                             const sandbox::ProgramLimits&)>;

// `run`: what runs programs, from several threads.
std::unique_ptr<Verifier> make_program_verifier(RunProgram run = sandbox::run_program);

// The code of a response, as above.
std::string program_in(std::string_view response);

}  // namespace tailrace
