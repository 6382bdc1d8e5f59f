// The environment of the README, as it stands there.
#include <algorithm>

#include "core/base/file.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

// clang-format off
class GuessNumber final : public Environment {
 public:
  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    secret_ = static_cast<int>(task.seed % 10);
    low_ = turns_ = 0;
    high_ = 9;
    running_ = true;
    return Observation{"guess >"};
  }

  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"step() without an episode"};
    StepResult result;
    const int guess = action.empty() ? -1 : action[0] - '0';
    result.terminated = guess == secret_;
    result.truncated = !result.terminated && ++turns_ == info_.max_turns;
    result.reward = result.terminated ? 1.0 : 0.0;
    result.metrics = {{"success", result.reward}};
    (guess < secret_ ? low_ : high_) = std::clamp(guess + (guess < secret_ ? 1 : -1), low_, high_);
    if (!result.terminated && !result.truncated)
      result.observation.text = guess < secret_ ? "higher >" : "lower >";
    running_ = !result.terminated && !result.truncated;
    return result;
  }

  void close() override { running_ = false; }

  // For a supervised warm-up: imperfect, so that there is something left to learn.
  std::optional<std::string> demonstrate(Rng& rng) override {
    return fmt::format("{}\n", low_ + rng.below(high_ - low_ + 1));
  }
  std::string sample_action(Rng& rng) override { return fmt::format("{}\n", rng.below(10)); }

 private:
  EnvironmentInfo info_{.name = "guess_number",
                        .vocabulary = {"\n", ">", "guess", "higher", "lower", "0", "1", "2", "3",
                                       "4", "5", "6", "7", "8", "9"},
                        .stop_strings = {"\n"},
                        .max_turns = 3,
                        .max_action_tokens = 2};
  int secret_ = 0, low_ = 0, high_ = 9, turns_ = 0;
  bool running_ = false;
};
// clang-format on

TEST(ReadmeExample, KeepsTheContract) {
  check_environment({.make = [] { return std::make_unique<GuessNumber>(); }});
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
