// The environment of the README, as it stands there.
#include <algorithm>

#include "core/base/file.h"
#include "sandbox/plugin/plugin_environment.h"
#include "tailrace/env.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

// clang-format off
class GuessNumber : public tailrace::Env {
 public:
  explicit GuessNumber(const tailrace::Settings&) {}

  tailrace::Info info() const override {
    tailrace::Info info;
    info.max_turns = 3;
    info.max_action_tokens = 2;
    info.stop_strings = {"\n"};
    info.vocabulary = {"\n", ">", "guess", "higher", "lower", "0", "1", "2", "3", "4", "5", "6", "7",
                       "8", "9"};
    return info;
  }

  tailrace::Observation reset(const tailrace::Task& task) override {
    secret_ = static_cast<int>(task.seed % 10);
    low_ = turns_ = 0;
    high_ = 9;
    return {"guess >"};
  }

  tailrace::Step step(std::string_view action) override {
    const int guess = action.empty() ? -1 : action[0] - '0';
    if (guess == secret_) return tailrace::Step::terminated(1).metric("success", 1);
    if (++turns_ == 3) return tailrace::Step::truncated("max_turns").metric("success", 0);
    (guess < secret_ ? low_ : high_) = std::clamp(guess + (guess < secret_ ? 1 : -1), low_, high_);
    return tailrace::Step::observe(guess < secret_ ? "higher >" : "lower >").metric("success", 0);
  }

  // For a supervised warm-up: imperfect, so that there is something left to learn.
  std::string demonstrate(tailrace::Random& random) override {
    return std::to_string(low_ + random.below(high_ - low_ + 1)) + "\n";
  }
  std::string sample_action(tailrace::Random& random) override {
    return std::to_string(random.below(10)) + "\n";
  }

 private:
  int secret_ = 0, low_ = 0, high_ = 9, turns_ = 0;
};
// clang-format on

const tr_library* library_of_readme(const tr_host* host) {
  static Library library(*host);
  library.environment<GuessNumber>("guess_number", "guess a digit from higher and lower");
  return library.finish("guess_number", "1.0");
}

TEST(ReadmeExample, KeepsTheContract) {
  const auto library = PluginLibrary::linked("guess_number", library_of_readme);
  check_environment({.make = [&] {
    return make_plugin_environment(library, library->environments().front(), {});
  }});
}

TEST(ReadmeExample, IsWhatTheReadmeShows) {
  const std::string root = TAILRACE_SOURCE_DIR;
  const std::string readme = read_file(root + "/README.md").value();
  const std::string test = read_file(root + "/tests/sandbox/readme_example_test.cc").value();
  const size_t begin = readme.find("class GuessNumber"), end = readme.find("```", begin);
  ASSERT_NE(end, std::string::npos);
  EXPECT_NE(test.find(readme.substr(begin, end - begin)), std::string::npos)
      << "README.md and this file show different classes";
}

}  // namespace
}  // namespace tailrace::sandbox
