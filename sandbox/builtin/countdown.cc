#include "sandbox/builtin/countdown.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "sandbox/builtin/settings_reader.h"

namespace tailrace::sandbox {

const SettingsSchema& countdown_settings() {
  static const SettingsSchema schema = {
      integer_setting("min_numbers", "that a task gives", 3, 2, 6),
      integer_setting("max_numbers", "the same; where it is not given at least min_numbers", 4, 2,
                      6),
      integer_setting("max_number", "the largest of them", 25, 2, 999),
      integer_setting("max_target", "the largest target", 99, 2, 999),
      number_setting("demo_solve",
                     "share of right answers of the demonstrator; else it guesses a formula", 0.6,
                     0, 1),
      number_setting("demo_invalid", "share of answers without tags", 0.05, 0, 1),
  };
  return schema;
}

namespace {

struct Term {
  int64_t value = 0;
  std::string text;
  bool compound = false;

  std::string inside() const { return compound ? "( " + text + " )" : text; }
};

// a op b when that is a whole number from 1 up, else none.
std::optional<Term> join(const Term& a, char op, const Term& b) {
  int64_t value = 0;
  switch (op) {
    case '+':
      value = a.value + b.value;
      break;
    case '-':
      value = a.value - b.value;
      break;
    case '*':
      value = a.value * b.value;
      break;
    default:
      // Never by 0: values begin at 1.
      value = a.value % b.value == 0 ? a.value / b.value : 0;
  }
  // Whole and positive in between as well; bounded, so that no product of two overflows.
  if (value < 1 || value > 100'000) return std::nullopt;
  return Term{value, a.inside() + " " + op + " " + b.inside(), true};
}

struct Puzzle {
  std::vector<int64_t> numbers;
  int64_t target = 0;
  std::string solution;
};

class Countdown final : public Environment {
 public:
  explicit Countdown(const EnvironmentSettings& settings) {
    const SettingsReader reader("countdown", countdown_settings(), settings);
    min_numbers_ = reader.integer("min_numbers");
    // At least min_numbers, so that this one can be raised alone.
    max_numbers_ = reader.integer("max_numbers");
    if (!reader.has("max_numbers")) max_numbers_ = std::max(max_numbers_, min_numbers_);
    max_number_ = reader.integer("max_number");
    max_target_ = reader.integer("max_target");
    demo_solve_ = reader.number("demo_solve");
    demo_invalid_ = reader.number("demo_invalid");
    if (max_numbers_ < min_numbers_) {
      throw reader.mistake("max_numbers", "max_numbers is {}, below min_numbers {}", max_numbers_,
                           min_numbers_);
    }
    info_.verifier = "countdown";
    info_.name = "countdown";
    info_.stop_strings = {"\n"};
    // Numbers, operators between them, two brackets for each inner operator, the tags and the
    // newline.
    info_.max_action_tokens = 2 * max_numbers_ - 1 + 2 * (max_numbers_ - 2) + 3 + 2;
    info_.vocabulary = {"\n", "numbers", "target", ">", "+",        "-",
                        "*",  "/",       "(",      ")", "<answer>", "</answer>"};
    // A formula writes given numbers only, so values in between need no words.
    for (int64_t n = 0; n <= std::max(max_number_, max_target_); ++n)
      info_.vocabulary.push_back(std::to_string(n));
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    Rng rng(mix({task.seed, 0x636f'756e'74}));  // "count": its own stream
    puzzle_ = draw(rng);
    running_ = true;
    std::string text = "numbers";
    for (int64_t n : puzzle_.numbers) text += " " + std::to_string(n);
    return Observation{text + " target " + std::to_string(puzzle_.target) + " >"};
  }

  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"countdown: step() without a running episode"};
    // The environment does not judge: what counts as a solution is the verifier's to say, for this
    // and for any dataset of such puzzles.
    StepResult result = scored(action);
    result.terminated = true;
    return result;
  }

  Result<StepResult> cut() override {
    if (!running_) return Failure{"countdown: cut() without a running episode"};
    StepResult result = scored("");
    result.truncated = true;
    return result;
  }

  void close() override { running_ = false; }

  std::optional<std::string> demonstrate(Rng& rng) override {
    if (!running_) return std::nullopt;
    if (rng.chance(demo_invalid_)) return puzzle_.solution + "\n";
    if (rng.chance(demo_solve_)) return answer(puzzle_.solution);
    return sample_action(rng);
  }

  std::string sample_action(Rng& rng) override {
    std::vector<int64_t> numbers = puzzle_.numbers;
    shuffle(numbers, rng);
    std::string text;
    for (int64_t n : numbers) {
      if (!text.empty()) text += std::string(" ") + "+-*/"[rng.below(4)] + " ";
      text += std::to_string(n);
    }
    return answer(text);
  }

 private:
  StepResult scored(const std::string& response) {
    running_ = false;
    nlohmann::json evidence = {
        {"numbers", puzzle_.numbers}, {"target", puzzle_.target}, {"response", response}};
    StepResult result;
    result.verifier = "countdown";
    // `replace`: what a policy writes need not be UTF-8, and dump() would throw.
    result.evidence = json_text(evidence);
    return result;
  }

  static std::string answer(const std::string& formula) {
    return "<answer> " + formula + " </answer>\n";
  }

  template <class T>
  static void shuffle(std::vector<T>& items, Rng& rng) {
    // Not std::shuffle(), which differs between libraries: a seed means the same puzzle everywhere.
    for (size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[rng.below(static_cast<int64_t>(i))]);
  }

  Puzzle draw(Rng& rng) const {
    while (true) {
      Puzzle puzzle;
      std::vector<Term> terms;
      for (int64_t n = min_numbers_ + rng.below(max_numbers_ - min_numbers_ + 1); n > 0; --n) {
        int64_t value = 1 + rng.below(max_number_);
        puzzle.numbers.push_back(value);
        terms.push_back({value, std::to_string(value), false});
      }
      // Joins two terms at random until one is left; a join without a whole result starts over.
      while (terms.size() > 1) {
        shuffle(terms, rng);
        std::optional<Term> joined =
            join(terms[terms.size() - 2], "+-*/"[rng.below(4)], terms.back());
        if (!joined) break;
        terms.pop_back();
        terms.back() = *joined;
      }
      // Built from a solution backwards, so every puzzle has one.
      if (terms.size() > 1 || terms[0].value > max_target_) continue;
      puzzle.target = terms[0].value;
      puzzle.solution = terms[0].text;
      return puzzle;
    }
  }

  EnvironmentInfo info_;
  int64_t min_numbers_ = 0, max_numbers_ = 0, max_number_ = 0, max_target_ = 0;
  double demo_solve_ = 0, demo_invalid_ = 0;
  Puzzle puzzle_;
  bool running_ = false;
};

}  // namespace

std::unique_ptr<Environment> make_countdown(const EnvironmentSettings& settings) {
  return std::make_unique<Countdown>(settings);
}

}  // namespace tailrace::sandbox
