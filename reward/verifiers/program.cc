#include "reward/verifiers/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/digest_of.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "reward/verifiers/evidence.h"
#include "reward/verifiers/row_check.h"

namespace tailrace {
namespace {

using nlohmann::json;
using sandbox::Program;
using sandbox::ProgramEnding;
using sandbox::ProgramLimits;
using sandbox::ProgramRun;

// Some ten megabytes of anchors.
constexpr size_t kMostAnchors = 100'000;
// The exit status of env, where there is no such command.
constexpr int kNoCommand = 127;

struct Language {
  const char *name, *interpreter, *file;
};
constexpr Language kLanguages[] = {{"python", "python3", "main.py"}, {"sh", "sh", "main.sh"}};

const Language* find_language(std::string_view name) {
  const auto* found = std::ranges::find(kLanguages, name, &Language::name);
  return found == std::end(kLanguages) ? nullptr : found;
}

// The language of evidence or of a row. A Failure says what is wrong with it.
Result<const Language*> language_of(const json& row) {
  const auto value = row.find("language");
  if (value == row.end()) return &kLanguages[0];
  const Language* language =
      value->is_string() ? find_language(value->get_ref<const std::string&>()) : nullptr;
  if (language != nullptr) return language;
  std::vector<std::string> names;
  for (const Language& known : kLanguages) names.push_back(fmt::format("\"{}\"", known.name));
  return Failure{fmt::format("\"language\" is {}; it must be {}",
                             value->dump(-1, ' ', false, json::error_handler_t::replace),
                             join_texts(names, " or "))};
}

struct Test {
  std::string input, output;
};

Result<std::vector<Test>> tests_of(const json& row) {
  const Failure wrong{
      "\"tests\" must be a list of at least one {\"stdin\": TEXT, \"stdout\": TEXT}"};
  const auto list = row.find("tests");
  if (list == row.end() || !list->is_array() || list->empty()) return wrong;
  std::vector<Test> tests;
  for (const json& item : *list) {
    if (!item.is_object() || item.size() != 2) return wrong;
    const std::optional<std::string> input = find_text(item, "stdin");
    const std::optional<std::string> output = find_text(item, "stdout");
    if (!input || !output) return wrong;
    tests.push_back({*input, *output});
  }
  return tests;
}

// By content: the same row in another file, or under another number, is the same. The prompt is in
// it because two tasks may share a test and take different times for it.
Digest digest_of_row(const json& row) {
  json content = {{"tests", row["tests"]}};
  for (const char* column : {"prompt", "language"}) {
    if (row.contains(column)) content[column] = row[column];
  }
  return digest_of(json_text(content));
}

bool is_trailing_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view without_trailing_blanks(std::string_view text) {
  while (!text.empty() && is_trailing_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Takes the first line off `text`.
std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

bool same_output(std::string_view a, std::string_view b) {
  // A text that is at its end goes on with empty lines.
  while (!a.empty() || !b.empty()) {
    if (without_trailing_blanks(next_line(a)) != without_trailing_blanks(next_line(b)))
      return false;
  }
  return true;
}

// Whether a program that does nothing passes all of them.
bool want_nothing(const std::vector<Test>& tests) {
  return std::ranges::all_of(tests, [](const Test& test) { return same_output("", test.output); });
}

// The fewest bytes that same_output() takes for `output`.
int64_t least_bytes(std::string_view output) {
  int64_t bytes = 0,
          before = 0;  // `before`: ends of lines since the last line with something in it
  while (!output.empty()) {
    const auto size = std::ssize(without_trailing_blanks(next_line(output)));
    if (size > 0) bytes += std::exchange(before, 0) + size;
    ++before;
  }
  return bytes;
}

// Whether a right program may write what each test wants: one that writes more is killed.
Result<void> check_output(const std::vector<Test>& tests) {
  constexpr int64_t kMost = ProgramLimits{}.output_bytes;
  for (size_t i = 0; i < tests.size(); ++i) {
    if (const int64_t bytes = least_bytes(tests[i].output); bytes > kMost)
      return Failure{fmt::format(
          "the \"stdout\" of test {} wants {} bytes, and a program is killed once it has written "
          "more than {}, so none can pass; shorten it or leave the test out",
          i + 1, bytes, kMost)};
  }
  return {};
}

// The time of all tests of a program together: the rest of a score is for what is not its doing.
constexpr Time time_of_tests(Time budget) { return a_little_less(budget); }

enum class Verdict {
  kPassed,
  kFailed,
  kLate,     // over its limit
  kUnknown,  // it was stopped before
};

struct TestEnd {
  Verdict verdict = Verdict::kUnknown;
  Time taken{0};
};

// Whether each of so many tests may take the least deadline.
Result<void> check_time(int64_t num_tests, Time budget) {
  const Time least = DeadlineRule{}.least, together = least * num_tests;
  if (together <= time_of_tests(budget)) return {};
  return Failure{fmt::format(
      "its {} tests may take {:g} s each, {:g} s together, and a score has {:.1f} s "
      "for them; give it "
      "at most {}, or raise scheduler.verify_seconds to {}",
      num_tests, seconds_of(least), seconds_of(together), seconds_of(time_of_tests(budget)),
      time_of_tests(budget) / least, verify_for(a_little_more(together)).count())};
}

class ProgramVerifier final : public Verifier {
 public:
  explicit ProgramVerifier(RunProgram run) : run_(std::move(run)) {}

  Result<Score> score(const std::string& text, Time budget) const override {
    const Time begin = clock_.now();
    Result<json> evidence = parse_evidence(text);
    if (!evidence) return evidence.failure();
    const json& row = evidence.value();
    const Result<std::string> response = final_response(row);
    if (!response) return response.failure();
    const Result<const Language*> language = language_of(row);
    if (!language) return language.failure();
    const Result<std::vector<Test>> tests = tests_of(row);
    if (!tests) return tests.failure();

    const std::string code = program_in(response.value());
    const Digest row_digest = digest_of_row(row);
    std::vector<std::pair<Digest, Time>> taken;
    size_t passed = 0;
    Time used{0}, slowest{0};
    bool is_late = false;
    for (const Test& test : tests.value()) {
      // The number of tests passed is that of the test, since the first one that fails ends the
      // loop.
      const Digest key = digest_of(fmt::format("{} {}", row_digest, passed));
      const Time limit = std::min(deadlines_.of(key), time_of_tests(budget) - used);
      const Time left = budget - (clock_.now() - begin);
      const Result<TestEnd> end =
          run_test(program(*language.value(), code, test.input), test, limit, left);
      if (!end) return end.failure();
      if (end.value().verdict == Verdict::kUnknown)
        return Failure{fmt::format(
            "to start the program for test {} of {} has left too little of the {:g} s of a score; "
            "is the machine overloaded? Give it fewer workers, or raise scheduler.verify_seconds",
            passed + 1, tests.value().size(), seconds_of(budget))};
      used += end.value().taken;
      slowest = std::max(slowest, end.value().taken);
      is_late = end.value().verdict == Verdict::kLate;
      if (end.value().verdict != Verdict::kPassed) break;
      taken.emplace_back(key, end.value().taken);
      ++passed;
    }
    const bool is_right = passed == tests.value().size();
    // The time of a wrong program says nothing about how long a right one may take.
    for (const auto& [key, time] : taken) {
      if (is_right) deadlines_.learn(key, time);
    }
    return Score{.reward = is_right ? 1.0 : 0.0,
                 .metrics = {{"success", is_right ? 1.0 : 0.0},
                             {"tests_passed", static_cast<double>(passed) /
                                                  static_cast<double>(tests.value().size())},
                             {"slowest_test_seconds", seconds_of(slowest)},
                             {"over_deadline", is_late ? 1.0 : 0.0}}};
  }

  Time least_budget() const override { return a_little_more(DeadlineRule{}.least); }

  Result<void> check_machine() const override {
    const Result<ProgramRun> run =
        run_({.command = {"/usr/bin/env", "true"}, .files = {}, .standard_input = {}}, {});
    if (run) return {};
    return Failure{fmt::format("this machine cannot test programs: {}", run.failure().message)};
  }

  Result<void> check_hidden(const std::filesystem::path& path) const override {
    const std::optional<std::string> folder = sandbox::shown_through(path);
    if (!folder) return {};
    return Failure{fmt::format(
        "{} lies below {}, which programs under test can read, with the answers in it; put it "
        "elsewhere",
        path.string(), *folder)};
  }

  Result<void> check_row(const std::string& text, Time budget) const override {
    RowCheck row(text);
    row.require("tests");
    row.find("language");
    if (const Result<void> fit = row.finish(); !fit) return fit;
    const json value = parse_json(text);
    const Result<std::vector<Test>> tests = tests_of(value);
    if (!tests) return tests.failure();
    if (want_nothing(tests.value()))
      return Failure{
          "every \"stdout\" of its \"tests\" is blank, and a program that does nothing would pass; "
          "give it a test that wants some output"};
    if (const auto fit = check_output(tests.value()); !fit) return fit;
    if (const auto fit = check_time(std::ssize(tests.value()), budget); !fit) return fit;
    const Result<const Language*> language = language_of(value);
    if (!language) return language.failure();
    return check_language(*language.value());
  }

 private:
  static Program program(const Language& language, const std::string& code, std::string input) {
    // env finds the interpreter among the commands that the program sees.
    return {.command = {"/usr/bin/env", language.interpreter, language.file},
            .files = {{language.file, code}},
            .standard_input = std::move(input)};
  }

  // `limit`: of the program; `left`: of the whole score. A program that has used its time up is not
  // begun.
  Result<TestEnd> run_test(const Program& program, const Test& test, Time limit, Time left) const {
    if (left <= Time{0}) return TestEnd{};
    if (limit <= Time{0}) return TestEnd{.verdict = Verdict::kLate};
    const Result<ProgramRun> run = run_(program, {.wall = std::min(limit, left)});
    if (!run) return run.failure();
    const ProgramRun& end = run.value();
    const auto seconds = std::chrono::duration<double>(end.seconds);
    TestEnd result{.verdict = Verdict::kFailed, .taken = std::chrono::duration_cast<Time>(seconds)};
    if (end.ending == ProgramEnding::kOverTime) {
      result.verdict = limit <= left ? Verdict::kLate : Verdict::kUnknown;
    } else if (end.ending == ProgramEnding::kExited && end.code == 0 &&
               same_output(end.out, test.output)) {
      result.verdict = Verdict::kPassed;
    }
    return result;
  }

  // Whether an empty program runs here, tried once for each language: a machine that cannot is told
  // so before a run, and not by failures of all that it verifies.
  Result<void> check_language(const Language& language) const {
    MutexLock lock(mutex_);
    // Under the lock while it is tried: whoever checks a row meanwhile waits for the one answer
    // instead of starting a program of its own.
    const auto [checked, is_new] = checked_.try_emplace(language.name);
    if (is_new) checked->second = try_language(language);
    return checked->second;
  }

  Result<void> try_language(const Language& language) const {
    const Result<ProgramRun> run = run_(program(language, "", ""), {});
    if (!run) return run.failure();
    const ProgramRun& end = run.value();
    if (end.ending == ProgramEnding::kExited && end.code == 0) return {};
    if (end.ending == ProgramEnding::kExited && end.code == kNoCommand)
      return Failure{fmt::format(
          "\"language\" is \"{}\", and isolated programs find no {} in /usr/local/bin, /usr/bin or "
          "/bin; install it there",
          language.name, language.interpreter)};
    return Failure{fmt::format("an empty program of the language \"{}\" does not end well: {}",
                               language.name, end.err)};
  }

  const RunProgram run_;
  const SteadyClock clock_;
  mutable AdaptiveDeadlines deadlines_{DeadlineRule{}, kMostAnchors};
  mutable Mutex mutex_;
  mutable std::map<std::string, Result<void>> checked_ TR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Verifier> make_program_verifier(RunProgram run) {
  return std::make_unique<ProgramVerifier>(std::move(run));
}

std::string program_in(std::string_view response) {
  std::optional<std::string> last;
  size_t fence = 0;  // how many marks opened the block that we are in; 0: in none
  for (std::string_view rest = response; !rest.empty();) {
    const std::string_view line = next_line(rest);
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const size_t marks = std::min(line.find_first_not_of('`', indent), line.size()) - indent;
    const bool is_bare = without_trailing_blanks(line).size() == indent + marks;
    if (fence > 0 && is_bare && marks >= fence) {
      fence = 0;
    } else if (fence > 0) {
      last->append(line).append("\n");
    } else if (marks >= 3 && line.find('`', indent + marks) == std::string_view::npos) {
      // With more marks in its line it is code within a text.
      fence = marks;
      last.emplace();
    }
  }
  return last ? *last : std::string(response);
}

}  // namespace tailrace
