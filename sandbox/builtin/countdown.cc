#include "sandbox/builtin/countdown.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/base/random.h"
#include "tailrace/env.h"

namespace tailrace::sandbox {

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

class Countdown final : public Env {
 public:
  explicit Countdown(const Settings& settings)
      : min_numbers_(settings.integer("min_numbers")),
        max_numbers_(settings.integer("max_numbers")),
        max_number_(settings.integer("max_number")),
        max_target_(settings.integer("max_target")),
        demo_solve_(settings.number("demo_solve")),
        demo_invalid_(settings.number("demo_invalid")) {
    if (max_numbers_ < min_numbers_)
      throw std::invalid_argument("max_numbers is " + std::to_string(max_numbers_) +
                                  ", below min_numbers " + std::to_string(min_numbers_));
    info_.reward = "countdown";
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

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    Rng rng(mix({task.seed, 0x636f'756e'74}));  // "count": its own stream
    puzzle_ = draw(rng);
    std::string text = "numbers";
    for (int64_t n : puzzle_.numbers) text += " " + std::to_string(n);
    return {text + " target " + std::to_string(puzzle_.target) + " >"};
  }

  // The environment does not judge: what counts as a solution is the verifier's to say, for this
  // and for any dataset of such puzzles.
  Step step(std::string_view action) override { return end(Step::terminated(), action); }

  Step cut() override { return end(Env::cut(), ""); }

  std::string demonstrate(Random& random) override {
    if (random.chance(demo_invalid_)) return puzzle_.solution + "\n";
    if (random.chance(demo_solve_)) return answer(puzzle_.solution);
    return sample_action(random);
  }

  std::string sample_action(Random& random) override {
    std::vector<int64_t> numbers = puzzle_.numbers;
    shuffle(numbers, random);
    std::string text;
    for (int64_t n : numbers) {
      if (!text.empty()) text += std::string(" ") + "+-*/"[random.below(4)] + " ";
      text += std::to_string(n);
    }
    return answer(text);
  }

 private:
  Step end(Step step, std::string_view response) const {
    const nlohmann::json evidence = {
        {"numbers", puzzle_.numbers}, {"target", puzzle_.target}, {"response", response}};
    // Not dump(): the answer of a policy need not be UTF-8, and dump() would throw.
    step.evidence = json_text(evidence);
    return step;
  }

  static std::string answer(const std::string& formula) {
    return "<answer> " + formula + " </answer>\n";
  }

  template <class T, class Numbers>
  static void shuffle(std::vector<T>& items, Numbers& rng) {
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

  Info info_;
  const int64_t min_numbers_, max_numbers_, max_number_, max_target_;
  const double demo_solve_, demo_invalid_;
  Puzzle puzzle_;
};

}  // namespace

void declare_countdown(Library& library) {
  library
      .environment<Countdown>("countdown",
                              "reach a target number with each given number once, one turn")
      .integer("min_numbers", "that a task gives", 3, 2, 6)
      .integer("max_numbers", "the same; at least min_numbers", 4, 2, 6)
      .integer("max_number", "the largest of them", 25, 2, 999)
      .integer("max_target", "the largest target", 99, 2, 999)
      .number("demo_solve", "share of right answers of the demonstrator; else it guesses a formula",
              0.6, 0, 1)
      .number("demo_invalid", "share of answers without tags", 0.05, 0, 1);
}

}  // namespace tailrace::sandbox
