#include "reward/verifiers/answer_text.h"

#include <algorithm>

#include "reward/verifiers/math_answer.h"

namespace tailrace {

namespace {

constexpr std::string_view kHashes = "####";
constexpr size_t kAnswerTailBytes = 300;

bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }
bool in_number_run(char c) {
  return is_decimal_digit(c) || c == ',' || c == '.' || c == '$' || c == '-' || c == '/';
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n", kBold = "**";  // **42** in Markdown
  while (true) {
    const size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    text = text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
    const size_t before = text.size();
    if (text.starts_with(kBold)) text.remove_prefix(kBold.size());
    if (text.ends_with(kBold)) text.remove_suffix(kBold.size());
    if (text.size() == before) return text;
  }
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

size_t last_box(std::string_view text) {
  const size_t boxed = text.rfind("\\boxed"), framed = text.rfind("\\fbox");
  if (boxed == std::string_view::npos) return framed;
  return framed == std::string_view::npos ? boxed : std::max(boxed, framed);
}

// What the command at the start of `text` is applied to: between braces, or up to a blank or `$`.
std::optional<std::string_view> box_content(std::string_view text) {
  text.remove_prefix(text.starts_with("\\boxed") ? 6 : 5);
  while (!text.empty() && text[0] == ' ') text.remove_prefix(1);
  if (!text.starts_with('{')) {
    const std::string_view word = text.substr(0, text.find_first_of(" \t\r\n$"));
    return word.empty() ? std::nullopt : std::optional(word);
  }
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    // \{ and \} are brackets of a set.
    if (text[i] == '\\') {
      ++i;
      continue;
    }
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return text.substr(1, i - 1);
  }
  return std::nullopt;
}

// What follows the last "answer is" or "answer:".
std::optional<std::string_view> after_phrase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  size_t after = std::string::npos;
  for (const std::string_view phrase : {"answer is", "answer:", "answer**:", "answer:**"}) {
    const size_t at = lower.rfind(phrase);
    if (at == std::string::npos) continue;
    const size_t end = at + phrase.size();
    after = after == std::string::npos ? end : std::max(after, end);
  }
  if (after == std::string::npos) return std::nullopt;
  // Up to the end of its line or sentence.
  std::string_view rest = trimmed(text.substr(after));
  rest = first_line(rest);
  const size_t stop = rest.find(". ");
  return rest.substr(0, stop);
}

// The last formula between $ and $, or \( and \).
std::optional<std::string_view> last_formula(std::string_view text) {
  const size_t close = text.rfind("\\)");
  if (close != std::string_view::npos) {
    const size_t open = text.substr(0, close).rfind("\\(");
    if (open != std::string_view::npos) return text.substr(open + 2, close - open - 2);
  }
  const size_t end = text.rfind('$');
  // $18 is a price: in a formula a `$` stands behind it too.
  if (end == std::string_view::npos || end == 0) return std::nullopt;
  const size_t begin = text.substr(0, end).find_last_not_of('$');
  const size_t open = begin == std::string_view::npos ? begin : text.substr(0, begin).rfind('$');
  if (open == std::string_view::npos) return std::nullopt;
  const std::string_view formula = text.substr(open + 1, begin - open);
  return formula.find('\n') == std::string_view::npos &&
                 formula.find(". ") == std::string_view::npos
             ? std::optional(formula)
             : std::nullopt;
}

bool has_no_text(const MathAnswer& answer) {
  return answer.kind != MathAnswer::Kind::kText && std::ranges::all_of(answer.items, has_no_text);
}

bool reads_as_math(std::string_view text) {
  const auto answer = parse_math(text);
  return answer && has_no_text(*answer);
}

}  // namespace

std::optional<std::string_view> find_marked_answer(std::string_view response) {
  const size_t hashes = response.rfind(kHashes), box = last_box(response);
  if (hashes == std::string_view::npos && box == std::string_view::npos) return std::nullopt;
  if (box != std::string_view::npos && (hashes == std::string_view::npos || box > hashes))
    return box_content(response.substr(box));
  return trimmed(first_line(trimmed(response.substr(hashes + kHashes.size()))));
}

std::optional<AnswerText> find_answer(std::string_view response, bool strict) {
  const bool mark = response.rfind(kHashes) != std::string_view::npos ||
                    last_box(response) != std::string_view::npos;
  if (mark || strict) {
    const auto marked = find_marked_answer(response);
    if (!marked || marked->empty()) return std::nullopt;
    return AnswerText{.text = std::string(*marked), .marked = true};
  }
  std::string_view tail = response;
  if (tail.size() > kAnswerTailBytes) tail.remove_prefix(tail.size() - kAnswerTailBytes);
  const auto phrase = after_phrase(tail);
  std::string_view found = trimmed(phrase.value_or(tail));
  if (!reads_as_math(found)) {
    const auto formula = last_formula(found);
    const auto number = last_number(found);
    // Words alone are an answer where nothing else stands: "Yes".
    if (formula && reads_as_math(*formula))
      found = *formula;
    else if (number)
      found = *number;
    else if (!phrase && found.find('\n') != std::string_view::npos)
      return std::nullopt;
  }
  if (found.empty()) return std::nullopt;
  return AnswerText{.text = std::string(found), .marked = false};
}

std::optional<std::string_view> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_decimal_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  while (begin > 0 && in_number_run(text[begin - 1])) --begin;
  text = text.substr(begin, end - begin);
  // "3-4" and "a/5": what stands before the last sign or at the front is not of the number.
  size_t sign = text.rfind('-');
  if (sign != std::string_view::npos && sign > 0)
    text.remove_prefix(sign + (is_decimal_digit(text[sign - 1]) ? 1 : 0));
  while (!text.empty() && (text[0] == '/' || text[0] == ',' || text[0] == '.'))
    text.remove_prefix(1);
  return text;
}

}  // namespace tailrace
