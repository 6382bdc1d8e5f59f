#include "sandbox/builtin/calculator.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/base/random.h"
#include "sandbox/builtin/expression.h"
#include "sandbox/builtin/tool_talk.h"
#include "tailrace/env.h"

namespace tailrace::sandbox {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

constexpr const char* kCalculatorTool =
    R"([{"type": "function", "function": {"name": "calculator",
         "description": "The value of an expression.",
         "parameters": {"type": "object", "properties": {"expression": {"type": "string"}},
                        "required": ["expression"]}}}])";

class Calculator final : public Env {
 public:
  explicit Calculator(const Settings& settings)
      : max_number_(settings.integer("max_number")),
        max_terms_(settings.integer("max_terms")),
        invalid_penalty_(settings.number("invalid_penalty")),
        demo_tool_(settings.number("demo_tool")),
        demo_invalid_(settings.number("demo_invalid")),
        talk_(settings.text("form")) {
    info_.max_turns = settings.integer("max_turns");
    if (settings.text("score_by") == "number") info_.reward = "number";
    if (talk_.is_chat()) {
      info_.max_action_tokens = 256;
      return;
    }
    info_.stop_strings = {"\n"};
    // `calc`, max_terms numbers with an operator between each two, the newline, and two more for a
    // pair of brackets.
    info_.max_action_tokens = 2 * max_terms_ + 3;
    info_.vocabulary = {"\n", ">", "solve", "calc", "answer", "error", "what",
                        "?",  "+", "-",     "*",    "/",      "(",     ")"};
    for (int64_t n = 0; n <= max_number_; ++n) info_.vocabulary.push_back(std::to_string(n));
  }

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    Rng rng(mix({task.seed, 0x6361'6c63}));  // "calc": its own stream
    // A question whose value the vocabulary has no word for could not be answered.
    do {
      draw(rng);
    } while (!(result_ = value_of(question_)));
    seed_ = task.seed;
    shown_ = std::nullopt;
    turns_ = invalid_ = tool_calls_ = 0;
    if (!talk_.is_chat()) return {"solve " + question_ + " >"};
    return {.text = "What is " + question_ +
                    "? Ask the calculator, and then answer with the number alone.",
            .tools = kCalculatorTool};
  }

  Step step(std::string_view action) override {
    ++turns_;
    auto [answer, is_invalid, step] = talk_.is_chat() ? chat_turn(action) : turn_of_words(action);
    // With a verifier the penalties stay with the steps and the score is its own.
    if (answer)
      return end(Step::terminated(answer == result_ && info_.reward.empty() ? 1 : 0), answer);
    invalid_ += is_invalid;
    step.reward = is_invalid ? -invalid_penalty_ : 0;
    if (turns_ == info_.max_turns) return end(Step::truncated("max_turns", step.reward), {});
    step.metrics = metrics(/*success=*/false);
    return step;
  }

  Step cut() override { return end(Env::cut(), {}); }

  std::string demonstrate(Random& random) override {
    if (random.chance(demo_invalid_))
      return talk_.is_chat() ? call_of(question_).substr(0, 20) : "answer calc\n";
    if (shown_) return answer_with(*shown_);
    if (random.chance(demo_tool_)) return call_of(question_);
    // A near miss, never the answer: one to three above it, or as far below where the vocabulary
    // ends.
    int64_t miss = *result_ + 1 + random.below(3);
    return answer_with(miss <= max_number_ ? miss : miss - 4);
  }

  std::string sample_action(Random& random) override {
    const int64_t number = random.below(max_number_ + 1);
    if (random.chance(0.3)) return answer_with(number);
    const char op = "+-*/"[random.below(4)];
    return call_of(std::to_string(number) + " " + op + " " +
                   std::to_string(random.below(max_number_ + 1)));
  }

 private:
  // An action: an answer, or else what is said to it.
  struct Turn {
    std::optional<int64_t> answer = {};
    bool is_invalid = false;
    Step step = {};
  };

  Turn turn_of_words(std::string_view action) {
    // Up to the newline that ends an action: without it max_action_tokens cut the line, and half a
    // number would be another number.
    std::string_view line;
    if (action.ends_with('\n')) line = trimmed(action.substr(0, action.size() - 1));
    if (line.starts_with("calc ")) return {.step = Step::observe(calculate(line.substr(5)) + " >")};
    if (const auto answer = answer_of(line)) return {.answer = answer};
    return {.is_invalid = true, .step = Step::observe("what ? >")};
  }

  Turn chat_turn(std::string_view action) {
    const chat::ParsedAnswer said = talk_.read(action, seed_, turns_);
    Turn turn;
    if (said.calls.empty() && said.num_malformed == 0) turn.answer = last_number(said.content);
    turn.is_invalid = said.num_malformed > 0 || (said.calls.empty() && !turn.answer);
    ToolReplies replies;
    for (const chat::ToolCall& call : said.calls) replies.answer(call, calculate(call));
    if (turn.is_invalid) replies.ask_again(said);
    turn.step.messages = replies.json();
    return turn;
  }

  std::string calculate(const chat::ToolCall& call) {
    const nlohmann::json arguments = parse_json(call.arguments);
    const auto expression = arguments.find("expression");
    // Arguments come from a policy: what is no expression is answered like one that cannot be
    // evaluated.
    const bool is_one =
        call.name == "calculator" && expression != arguments.end() && expression->is_string();
    return calculate(is_one ? expression->get<std::string>() : "");
  }

  std::string calculate(std::string_view expression) {
    ++tool_calls_;
    shown_ = value_of(expression);
    return shown_ ? std::to_string(*shown_) : "error";
  }

  std::string call_of(const std::string& expression) const {
    return talk_.is_chat() ? talk_.call("calculator", R"({"expression": ")" + expression + "\"}")
                           : "calc " + expression + "\n";
  }

  std::string answer_with(int64_t number) const {
    return talk_.is_chat() ? std::to_string(number) : "answer " + std::to_string(number) + "\n";
  }

  static std::optional<int64_t> number_of(std::string_view text) {
    int64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  static std::optional<int64_t> answer_of(std::string_view line) {
    if (!line.starts_with("answer ")) return std::nullopt;
    return number_of(trimmed(line.substr(7)));
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

  std::vector<Metric> metrics(bool success) const {
    return {{"success", success ? 1.0 : 0.0},
            {"invalid_actions", static_cast<double>(invalid_)},
            {"tool_calls", static_cast<double>(tool_calls_)}};
  }

  Step end(Step step, std::optional<int64_t> answer) const {
    step.metrics = metrics(answer == result_);
    if (info_.reward.empty()) return step;
    const nlohmann::json evidence = {{"answer", std::to_string(*result_)},
                                     {"response", answer ? std::to_string(*answer) : ""}};
    step.evidence = json_text(evidence);
    return step;
  }

  Info info_;  // with Info::reward it does not score itself
  const int64_t max_number_, max_terms_;
  const double invalid_penalty_, demo_tool_, demo_invalid_;
  const ToolTalk talk_;
  uint64_t seed_ = 0;
  std::string question_;
  std::optional<int64_t> result_;  // of the question; always there after reset()
  std::optional<int64_t> shown_;   // by the last calc
  int64_t turns_ = 0, invalid_ = 0, tool_calls_ = 0;
};

}  // namespace

void declare_calculator(Library& library) {
  library.environment<Calculator>("calculator", "arithmetic with a calculator tool, several turns")
      .choice("form", kToolFormHelp, "words", {"words", "hermes", "llama3"})
      .integer("max_number", "of all numbers and values", 99, 9, 9999)
      .integer("max_terms", "of a question", 3, 2, 6)
      .integer("max_turns", "of an episode", 4, 2, 100)
      .number("invalid_penalty", "what an action that is none costs", 0.05, 0, 1)
      .choice("score_by", "rule: the environment scores itself; number: the verifier number does",
              "rule", {"rule", "number"})
      .number("demo_tool",
              "share of its turns in which the demonstrator uses the calculator; else it answers a "
              "near miss",
              0.5, 0, 1)
      .number("demo_invalid", "share in which it writes no action", 0.05, 0, 1);
}

}  // namespace tailrace::sandbox
