#include "reward/verifiers/number.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/answer_text.h"
#include "reward/verifiers/evidence.h"
#include "reward/verifiers/response_verifier.h"
#include "reward/verifiers/row_check.h"

namespace tailrace {

namespace {

// The marks of a final answer: GSM8K's (Cobbe et al. 2021), and that of MATH (Hendrycks et al.
// 2021), which models of mathematics write whatever they are asked.
constexpr std::string_view kMark = "#### ", kBoxed = "\\boxed{";
constexpr size_t kTailBytes = 300;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// from_chars() alone would take "inf" and "nan", and no plus sign.
std::optional<double> parse_decimal(std::string_view text) {
  bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  if (text.empty() || !(is_digit(text[0]) || text[0] == '.')) return std::nullopt;
  // `fixed`: "1e5" in a response is no number as people write them.
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return negative ? -value : value;
}

// The text between braces, of which the first is open already; all if none closes it.
std::string_view in_braces(std::string_view text) {
  int64_t depth = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return text.substr(0, i);
  }
  return text;
}

// The number that the last mark marks: a word, or the content of a box.
std::optional<std::string_view> marked_number(std::string_view text) {
  const size_t mark = text.rfind(kMark), boxed = text.rfind(kBoxed);
  if (boxed != std::string_view::npos && (mark == std::string_view::npos || boxed > mark))
    return in_braces(text.substr(boxed + kBoxed.size()));
  if (mark == std::string_view::npos) return std::nullopt;
  text.remove_prefix(mark + kMark.size());
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  size_t end = 0;
  while (end < text.size() && !is_blank(text[end])) ++end;
  return text.substr(0, end);
}

std::optional<double> right_answer(const nlohmann::json& evidence) {
  auto answer = evidence.find("answer");
  if (answer == evidence.end()) return std::nullopt;
  if (answer->is_number()) return answer->get<double>();
  if (!answer->is_string()) return std::nullopt;
  auto text = answer->get<std::string>();
  std::optional<std::string_view> marked = marked_number(text);
  return parse_answer(marked.value_or(text));
}

class NumberVerifier final : public ResponseVerifier {
 public:
  Result<void> check_row(const std::string& text, Time /*budget*/) const override {
    RowCheck row(text);
    const nlohmann::json& answer = row.require("answer");
    const std::optional<double> right = right_answer(nlohmann::json{{"answer", answer}});
    if (!right || !std::isfinite(*right))
      row.refuse("\"answer\" holds no number that can be compared with");
    const std::optional<std::string> extract = row.text("extract");
    if (extract && *extract != "strict")
      row.refuse(
          fmt::format("\"extract\" is \"{}\"; it must be \"strict\", or left out", *extract));
    return row.finish();
  }

 private:
  Result<Score> score_response(const nlohmann::json& evidence,
                               const std::string& response) const override {
    std::optional<double> right = right_answer(evidence);
    if (!right || !std::isfinite(*right)) return Failure{"the evidence has no number \"answer\""};
    bool strict = find_text(evidence, "extract") == "strict";
    std::string_view tail = response;
    if (tail.size() > kTailBytes) tail.remove_prefix(tail.size() - kTailBytes);
    std::optional<std::string_view> found = marked_number(tail);
    bool formatted = found.has_value();
    if (!found && !strict) found = last_number(tail);
    std::optional<double> value = found ? parse_answer(*found) : std::nullopt;
    // By value: "18.00", "$18" and "18" are one answer. The bound lets 0.3333333 stand for 1/3, and
    // not 0.33.
    bool success = value && std::abs(*value - *right) <= 1e-6 * std::max(1.0, std::abs(*right));
    return Score{
        .reward = success ? 1.0 : 0.0,
        .metrics = {{"success", success ? 1.0 : 0.0}, {"formatted", formatted ? 1.0 : 0.0}}};
  }
};

}  // namespace

std::optional<double> parse_answer(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  // The full stop of a sentence that ends in a number.
  while (!text.empty() && (is_blank(text.back()) || text.back() == '.')) text.remove_suffix(1);
  std::string plain;
  for (char c : text) {
    if (c != '$' && c != ',' && c != '\\') plain += c;  // LaTeX writes \$18
  }
  size_t slash = plain.find('/');
  if (slash == std::string::npos) return parse_decimal(plain);
  std::optional<double> above = parse_decimal(std::string_view(plain).substr(0, slash));
  std::optional<double> below = parse_decimal(std::string_view(plain).substr(slash + 1));
  if (!above || !below || *below == 0) return std::nullopt;
  return *above / *below;
}

std::unique_ptr<Verifier> make_number_verifier() { return std::make_unique<NumberVerifier>(); }

}  // namespace tailrace
