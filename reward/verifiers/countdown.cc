#include "reward/verifiers/countdown.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "reward/verifiers/evidence.h"
#include "reward/verifiers/response_verifier.h"
#include "reward/verifiers/row_check.h"
#include "sandbox/builtin/expression.h"

namespace tailrace {

namespace {

// As TinyZero scores it: a first step to climb, too small to be worth staying on.
constexpr double kFormatReward = 0.1;

// Between the last <answer> and the </answer> after it.
std::optional<std::string_view> last_answer(std::string_view response) {
  constexpr std::string_view kOpen = "<answer>", kClose = "</answer>";
  size_t close = response.rfind(kClose);
  if (close == std::string_view::npos) return std::nullopt;
  size_t open = response.substr(0, close).rfind(kOpen);
  if (open == std::string_view::npos) return std::nullopt;
  open += kOpen.size();
  return response.substr(open, close - open);
}

bool solves(std::string_view formula, std::vector<int64_t> numbers, int64_t target) {
  auto evaluation = sandbox::evaluate(formula);
  if (!evaluation || evaluation->value != sandbox::Rational{target, 1}) return false;
  // As multisets: each given number exactly as often as it is given.
  std::sort(numbers.begin(), numbers.end());
  std::sort(evaluation->numbers.begin(), evaluation->numbers.end());
  return evaluation->numbers == numbers;
}

bool are_integers(const nlohmann::json& list) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [](const auto& n) { return n.is_number_integer(); });
}

class CountdownVerifier final : public ResponseVerifier {
 public:
  Result<void> check_row(const std::string& text, Time /*budget*/) const override {
    RowCheck row(text);
    if (!are_integers(row.require("numbers"))) row.refuse("\"numbers\" must be a list of integers");
    if (!row.require("target").is_number_integer()) row.refuse("\"target\" must be an integer");
    return row.finish();
  }

 private:
  Result<Score> score_response(const nlohmann::json& evidence,
                               const std::string& response) const override {
    std::optional<int64_t> target = find_integer(evidence, "target");
    auto numbers = evidence.find("numbers");
    bool whole = numbers != evidence.end() && are_integers(*numbers);
    if (!target || !whole)
      return Failure{"the evidence lacks the integers \"numbers\" and \"target\""};
    // The last one: a policy may try out several in its answer, and means the last.
    std::optional<std::string_view> formula = last_answer(response);
    bool success = formula && solves(*formula, numbers->get<std::vector<int64_t>>(), *target);
    return Score{.reward = success   ? 1.0
                           : formula ? kFormatReward
                                     : 0.0,
                 .metrics = {{"success", success ? 1.0 : 0.0}, {"formatted", formula ? 1.0 : 0.0}}};
  }
};

}  // namespace

std::unique_ptr<Verifier> make_countdown_verifier() {
  return std::make_unique<CountdownVerifier>();
}

}  // namespace tailrace
