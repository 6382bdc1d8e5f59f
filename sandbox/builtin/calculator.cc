#include "sandbox/builtin/calculator.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "sandbox/builtin/expression.h"
#include "sandbox/builtin/settings_reader.h"

namespace tailrace::sandbox {

const SettingsSchema& calculator_settings() {
  static const SettingsSchema schema = {
      integer_setting("max_number", "of all numbers and values", 99, 9, 9999),
      integer_setting("max_terms", "of a question", 3, 2, 6),
      integer_setting("max_turns", "of an episode", 4, 2, 100),
      number_setting("invalid_penalty", "what an action that is none costs", 0.05, 0, 1),
      choice_setting("score_by",
                     "rule: the environment scores itself; number: the verifier number does",
                     {"rule", "number"}),
      number_setting("demo_tool",
                     "share of its turns in which the demonstrator uses the calculator; else it "
                     "answers a near miss",
                     0.5, 0, 1),
      number_setting("demo_invalid", "share in which it writes no action", 0.05, 0, 1),
  };
  return schema;
}

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

class Calculator final : public Environment {
 public:
  explicit Calculator(const EnvironmentSettings& settings) {
    const SettingsReader reader("calculator", calculator_settings(), settings);
    max_number_ = reader.integer("max_number");
    max_terms_ = reader.integer("max_terms");
    info_.max_turns = reader.integer("max_turns");
    invalid_penalty_ = reader.number("invalid_penalty");
    verifier_ = reader.text("score_by") == "number" ? "number" : "";
    info_.verifier = verifier_;
    demo_tool_ = reader.number("demo_tool");
    demo_invalid_ = reader.number("demo_invalid");
    info_.name = "calculator";
    info_.stop_strings = {"\n"};
    // `calc`, max_terms numbers with an operator between each two, the newline, and two more for a
    // pair of brackets.
    info_.max_action_tokens = 2 * max_terms_ + 3;
    info_.vocabulary = {"\n", ">", "solve", "calc", "answer", "error", "what",
                        "?",  "+", "-",     "*",    "/",      "(",     ")"};
    for (int64_t n = 0; n <= max_number_; ++n) info_.vocabulary.push_back(std::to_string(n));
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    Rng rng(mix({task.seed, 0x6361'6c63}));  // "calc": its own stream
    // A question whose value the vocabulary has no word for could not be answered.
    do {
      draw(rng);
    } while (!(result_ = value_of(question_)));
    shown_ = std::nullopt;
    turns_ = invalid_ = tool_calls_ = 0;
    running_ = true;
    return Observation{"solve " + question_ + " >"};
  }

  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"calculator: step() without a running episode"};
    ++turns_;
    StepResult result;
    bool success = false;
    // Up to the newline that ends an action: without it max_action_tokens cut the line, and half a
    // number would be another number.
    std::string_view line = action;
    if (line.ends_with('\n')) {
      line = trimmed(line.substr(0, line.size() - 1));
    } else {
      line = "";  // an unfinished line is no action
    }
    std::optional<int64_t> answer;
    if (line.starts_with("calc ")) {
      ++tool_calls_;
      shown_ = value_of(line.substr(5));
      result.observation.text = (shown_ ? std::to_string(*shown_) : "error") + " >";
    } else if (line.starts_with("answer ") && (answer = number_of(trimmed(line.substr(7))))) {
      success = answer == result_;
      result.terminated = true;
    } else {
      ++invalid_;
      result.reward -= invalid_penalty_;
      result.observation.text = "what ? >";
    }
    // With a verifier the penalties stay with the steps and the score is its own.
    if (success && verifier_.empty()) result.reward += 1;
    result.truncated = !result.terminated && turns_ == info_.max_turns;
    result.metrics = metrics(success);
    if (result.terminated || result.truncated) finish(result, answer);
    return result;
  }

  Result<StepResult> cut() override {
    if (!running_) return Failure{"calculator: cut() without a running episode"};
    StepResult result;
    result.truncated = true;
    result.metrics = metrics(/*success=*/false);
    finish(result, std::nullopt);
    return result;
  }

  void close() override { running_ = false; }

  std::optional<std::string> demonstrate(Rng& rng) override {
    if (!running_) return std::nullopt;
    if (rng.chance(demo_invalid_)) return "answer calc\n";
    if (shown_) return "answer " + std::to_string(*shown_) + "\n";
    if (rng.chance(demo_tool_)) return "calc " + question_ + "\n";
    // A near miss, never the answer: one to three above it, or as far below where the vocabulary
    // ends.
    int64_t miss = *result_ + 1 + rng.below(3);
    return "answer " + std::to_string(miss <= max_number_ ? miss : miss - 4) + "\n";
  }

  std::string sample_action(Rng& rng) override {
    std::string number = std::to_string(rng.below(max_number_ + 1));
    if (rng.chance(0.3)) return "answer " + number + "\n";
    return "calc " + number + " " + "+-*/"[rng.below(4)] + " " +
           std::to_string(rng.below(max_number_ + 1)) + "\n";
  }

 private:
  static std::optional<int64_t> number_of(std::string_view text) {
    int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  // A whole number from 0 to max_number, which is what the vocabulary has words for.
  std::optional<int64_t> value_of(std::string_view expression) const {
    std::optional<Evaluation> evaluation = evaluate(expression);
    if (!evaluation || !evaluation->value || evaluation->value->denominator != 1)
      return std::nullopt;
    int64_t value = evaluation->value->numerator;
    return value >= 0 && value <= max_number_ ? std::optional(value) : std::nullopt;
  }

  void draw(Rng& rng) {
    question_.clear();
    // Without division, which would seldom come out whole.
    for (int64_t n = 2 + rng.below(max_terms_ - 1); n > 0; --n) {
      if (!question_.empty()) question_ += std::string(" ") + "+-*"[rng.below(3)] + " ";
      // Larger numbers would seldom give a value that has a word.
      question_ += std::to_string(1 + rng.below(std::min<int64_t>(max_number_, 20)));
    }
  }

  std::vector<std::pair<std::string, double>> metrics(bool success) const {
    return {{"success", success ? 1.0 : 0.0},
            {"invalid_actions", static_cast<double>(invalid_)},
            {"tool_calls", static_cast<double>(tool_calls_)}};
  }

  void finish(StepResult& result, std::optional<int64_t> answer) {
    running_ = false;
    // Nobody reads it any more, and it would be encoded for nothing.
    result.observation.text.clear();
    if (verifier_.empty()) return;
    result.verifier = verifier_;
    nlohmann::json evidence = {{"answer", std::to_string(*result_)},
                               {"response", answer ? std::to_string(*answer) : ""}};
    result.evidence = json_text(evidence);
  }

  EnvironmentInfo info_;
  int64_t max_number_ = 0, max_terms_ = 0;
  double invalid_penalty_ = 0, demo_tool_ = 0, demo_invalid_ = 0;
  std::string verifier_;  // empty: the rule
  std::string question_;
  std::optional<int64_t> result_;  // of the question; always there after reset()
  std::optional<int64_t> shown_;   // by the last calc
  int64_t turns_ = 0, invalid_ = 0, tool_calls_ = 0;
  bool running_ = false;
};

}  // namespace

std::unique_ptr<Environment> make_calculator(const EnvironmentSettings& settings) {
  return std::make_unique<Calculator>(settings);
}

}  // namespace tailrace::sandbox
