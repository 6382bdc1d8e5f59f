#include "reward/verifiers/math.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "reward/verifiers/answer_text.h"
#include "reward/verifiers/evidence.h"
#include "reward/verifiers/latex_tokens.h"
#include "reward/verifiers/math_answer.h"
#include "reward/verifiers/response_verifier.h"
#include "reward/verifiers/row_check.h"

namespace tailrace {

namespace {

constexpr const char* kAccepted =
    "give \"answer\" or \"ground_truth\" (a number, or a text such as \"\\\\frac{1}{2}\" or \"... "
    "#### 72\"), or a \"solution\" with its answer in \\boxed{}";

// A text or a number, as text. None: something else.
std::optional<std::string> field_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return json_text(value);
  return std::nullopt;
}

struct RightAnswer {
  std::string text;
  bool percent_is_unit = false;
};

// The right answer as it is written in a row.
std::optional<RightAnswer> right_answer_of(const nlohmann::json& row) {
  const auto of = [](const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? std::nullopt : std::optional(*found);
  };
  std::optional<nlohmann::json> value = of(row, "answer");
  if (!value) value = of(row, "ground_truth");
  if (!value) {
    const auto model = of(row, "reward_model");
    if (model && model->is_object()) value = of(*model, "ground_truth");
  }
  const auto text = value ? field_text(*value) : find_text(row, "solution");
  if (!text) return std::nullopt;
  const auto marked = find_marked_answer(*text, /*is_right=*/true);
  if (!marked && !value) return std::nullopt;
  // GSM8K writes its answers as bare numbers: 20 of "20%" is right there.
  return RightAnswer{.text = marked ? marked->text : *text,
                     .percent_is_unit = text->find("####") != std::string::npos};
}

// Without the signs of its last value: in "5 * 20% = 1" they are no units.
std::string without_percent(std::string_view text) {
  const size_t begin = text.find_last_of('=');
  std::string without;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool last = begin == std::string_view::npos || i > begin;
    if (text[i] != '%' || !last) {
      without += text[i];
    } else if (without.ends_with('\\')) {
      without.pop_back();
    }
  }
  return without;
}

bool is_right(const MathAnswer& gold, const std::string& text) {
  const auto given = parse_math(text);
  return given && same(gold, *given);
}

class MathVerifier final : public ResponseVerifier {
 public:
  Result<void> check_row(const std::string& text, Time /*budget*/) const override {
    RowCheck row(text);
    nlohmann::json gold = nlohmann::json::object();
    for (const char* column : {"answer", "ground_truth", "reward_model", "solution"})
      if (const nlohmann::json* value = row.find(column)) gold[column] = *value;
    const auto answer = right_answer_of(gold);
    if (!answer)
      row.refuse(fmt::format("it has no right answer; {}", kAccepted));
    else if (answer->text.size() > kMaxAnswerBytes)
      row.refuse(fmt::format("its right answer has {} bytes; the most is {}", answer->text.size(),
                             kMaxAnswerBytes));
    else if (!parse_math(answer->text))
      row.refuse("its right answer is empty, or nested too deep");
    const auto extract = row.text("extract");
    if (extract && *extract != "strict")
      row.refuse(
          fmt::format("\"extract\" is \"{}\"; it must be \"strict\", or left out", *extract));
    return row.finish();
  }

 private:
  Result<Score> score_response(const nlohmann::json& evidence,
                               const std::string& response) const override {
    const auto gold = right_answer_of(evidence);
    const auto right = gold ? parse_math(gold->text) : std::nullopt;
    if (!right) return Failure{fmt::format("the evidence has no right answer: {}", kAccepted)};
    const bool strict = find_text(evidence, "extract") == "strict";
    auto found = find_answer(response, {.strict = strict, .terms = is_open_term(gold->text)});
    if (found && gold->percent_is_unit) found->text = without_percent(found->text);
    bool is_same = found && is_right(*right, found->text);
    // Only a right answer with names asks for all the boxes; else the last one is the answer.
    if (found && !found->named.empty() && has_names(*right))
      is_same = is_right(*right, found->named);
    // Behind the box a percent sign is a unit, or it is part of the answer.
    if (found && found->percent) is_same = is_same || is_right(*right, found->text + "\\%");
    const double success = is_same ? 1 : 0;
    const double formatted = found && found->marked ? 1 : 0;
    return Score{.reward = success, .metrics = {{"success", success}, {"formatted", formatted}}};
  }
};

}  // namespace

std::unique_ptr<Verifier> make_math_verifier() { return std::make_unique<MathVerifier>(); }

}  // namespace tailrace
