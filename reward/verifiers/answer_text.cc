#include "reward/verifiers/answer_text.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reward/verifiers/latex_tokens.h"
#include "reward/verifiers/math_answer.h"

namespace tailrace {

namespace {

constexpr std::string_view kHashes = "####";
// Without a mark only the end counts: a number somewhere on the way is no answer.
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

struct Box {
  size_t begin = 0, end = 0;  // with its command and braces
  std::string_view content;
};

// The argument of the command at `begin`: between braces, or up to a blank or `$`.
std::optional<Box> box_at(std::string_view text, size_t begin) {
  size_t at = begin + (text.substr(begin).starts_with("\\boxed") ? 6 : 5);
  while (at < text.size() && text[at] == ' ') ++at;
  if (at == text.size() || text[at] != '{') {
    const std::string_view rest = text.substr(at);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\n$"));
    if (word.empty()) return std::nullopt;
    return Box{.begin = begin, .end = at + word.size(), .content = word};
  }
  int64_t depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    // \{ and \} are brackets of a set.
    if (text[i] == '\\') {
      ++i;
      continue;
    }
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0)
      return Box{.begin = begin, .end = i + 1, .content = text.substr(at + 1, i - at - 1)};
  }
  return std::nullopt;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

// Blanks, and the signs that begin and end a formula.
bool take_typesetting(std::string_view& text) {
  for (const std::string_view sign : {" ", "\n", "\t", "\r", "$", "\\(", "\\)", "\\[", "\\]", "\\ ",
                                      "\\,", "\\;", "\\:", "\\!", "~", "**"})
    if (take(text, sign)) return true;
  return false;
}

// A sign or a word between the items of a list.
bool take_divider(std::string_view& text) {
  for (const std::string_view sign : {",", ";", "\\qquad", "\\quad"})
    if (take(text, sign)) return true;
  std::string_view rest = text;
  bool is_open = false;
  for (const std::string_view command :
       {"\\text{", "\\textrm{", "\\textbf{", "\\mathrm{", "\\mbox{"})
    is_open = is_open || take(rest, command);
  while (is_open && take(rest, " ")) continue;
  if (!take(rest, "and") && !take(rest, "or")) return false;
  if (!rest.empty() && rest[0] >= 'a' && rest[0] <= 'z') return false;
  while (is_open && take(rest, " ")) continue;
  if (is_open && !take(rest, "}")) return false;
  text = rest;
  return true;
}

// Room for some words of typesetting; it also bounds what is looked through between two boxes.
constexpr size_t kMaxBetweenBytes = 100;

// The name in "x = " at the end of a text, without blanks; empty: there is none.
std::string_view name_before(std::string_view text) {
  const auto skip_blanks = [&] {
    while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  };
  skip_blanks();
  if (!text.ends_with('=')) return {};
  text.remove_suffix(1);
  skip_blanks();
  constexpr std::string_view kEnds = " \n\t$,;([&";
  const size_t begin = text.find_last_of(kEnds);
  return text.substr(begin == std::string_view::npos ? 0 : begin + 1);
}

// Whether what stands between two boxes makes them items of one list.
bool joins_boxes(std::string_view between) {
  if (between.size() > kMaxBetweenBytes) return false;
  if (const std::string_view name = name_before(between); !name.empty())
    between = between.substr(0, static_cast<size_t>(name.data() - between.data()));
  bool divides = false;
  while (!between.empty()) {
    if (take_divider(between))
      divides = true;
    else if (!take_typesetting(between))
      return false;
  }
  return divides;
}

// The last box of a text with those that stand together with it, in their order. Empty: the last
// one is not closed.
std::vector<Box> last_boxes(std::string_view text) {
  std::vector<Box> boxes;
  size_t bytes = 0;
  // The box before stands no further away: a search of the whole text for each would take long.
  constexpr size_t kWindow = kMaxAnswerBytes + kMaxBetweenBytes + 16;
  const auto box_before = [&](size_t end) {
    const size_t from = end > kWindow ? end - kWindow : 0;
    const size_t found = last_box(text.substr(from, end - from));
    return found == std::string_view::npos ? found : from + found;
  };
  for (size_t at = last_box(text); at != std::string_view::npos && bytes <= kMaxAnswerBytes;
       at = box_before(at)) {
    // For an earlier box nothing behind the start of the next one is read.
    const std::string_view part = boxes.empty() ? text : text.substr(0, boxes.back().begin);
    const auto box = box_at(part, at);
    if (!box || (!boxes.empty() && !joins_boxes(part.substr(box->end)))) break;
    bytes += box->content.size() + 1;
    boxes.push_back(*box);
  }
  std::ranges::reverse(boxes);
  return boxes;
}

bool percent_behind(std::string_view rest) {
  while (take_typesetting(rest)) continue;
  for (const std::string_view text : {"\\text{", "\\textrm{", "\\mathrm{", "\\mbox{"})
    take(rest, text);
  while (take_typesetting(rest)) continue;
  if (rest.starts_with("%") || rest.starts_with("\\%")) return true;
  if (!take(rest, "percent") && !take(rest, "pct")) return false;
  if (take(rest, "age")) return !rest.starts_with(" point");
  const bool is_longer = !rest.empty() && rest[0] >= 'a' && rest[0] <= 'z';
  return !is_longer;
}

std::optional<AnswerText> boxed_answer(std::string_view text, bool is_right) {
  const std::vector<Box> boxes = last_boxes(text);
  if (boxes.empty()) return std::nullopt;
  std::vector<std::string_view> names;
  for (size_t i = 0; i < boxes.size() && boxes.size() > 1; ++i) {
    const size_t from = i == 0 ? 0 : boxes[i - 1].end;
    names.push_back(name_before(text.substr(from, boxes[i].begin - from)));
  }
  // The first name counts for those that have none.
  const auto is_other = [&](std::string_view name) {
    return !name.empty() &&
           name != *std::ranges::find_if(names, [](std::string_view one) { return !one.empty(); });
  };
  const bool differ = std::ranges::any_of(names, is_other);
  AnswerText answer{
      .text = {}, .marked = true, .percent = percent_behind(text.substr(boxes.back().end))};
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (i > 0) answer.text += ", ";
    if (differ && !names[i].empty()) answer.text += std::string(names[i]) + " = ";
    answer.text += boxes[i].content;
  }
  if (differ && !is_right)
    answer.named = std::exchange(answer.text, std::string(boxes.back().content));
  return answer;
}

// The text that follows the last "answer is" or "answer:".
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

// 48 / 2, and not 1 / 2, where the sign of division stands at `at`.
bool is_whole_quotient(std::span<const LatexToken> tokens, size_t at) {
  const auto whole = [&](size_t i) -> int64_t {
    constexpr size_t kDigits = 18;  // fit
    const bool is_one = i < tokens.size() && tokens[i].kind == LatexToken::Kind::kNumber &&
                        tokens[i].text.size() <= kDigits &&
                        std::ranges::all_of(tokens[i].text, is_decimal_digit);
    return is_one ? std::stoll(tokens[i].text) : 0;
  };
  const int64_t over = at > 0 ? whole(at - 1) : 0, under = whole(at + 1);
  return over != 0 && under != 0 && over % under == 0;
}

bool has_no_text(const MathAnswer& answer) {
  return answer.kind != MathAnswer::Kind::kText && std::ranges::all_of(answer.items, has_no_text);
}

bool reads_as_math(std::string_view text) {
  const auto answer = parse_math(text);
  return answer && has_no_text(*answer);
}

}  // namespace

std::optional<AnswerText> find_marked_answer(std::string_view text, bool is_right) {
  const size_t hashes = text.rfind(kHashes), box = last_box(text);
  if (hashes == std::string_view::npos && box == std::string_view::npos) return std::nullopt;
  if (box != std::string_view::npos && (hashes == std::string_view::npos || box > hashes))
    return boxed_answer(hashes == std::string_view::npos ? text : text.substr(hashes), is_right);
  const std::string_view line = first_line(trimmed(text.substr(hashes + kHashes.size())));
  return AnswerText{.text = std::string(trimmed(line)), .marked = true};
}

bool is_open_term(std::string_view text) {
  const auto all = latex_tokens(text);
  if (!all) return false;
  // Behind the last of "x = 2 + 3 = 4 + 1".
  const auto relation = std::ranges::find_if(all->rbegin(), all->rend(), [](const LatexToken& t) {
    return t.is("=") || t.is("\\approx");
  });
  const std::span<const LatexToken> tokens(relation.base(), all->end());
  bool after_value = false;
  size_t operators = 0, fractions = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const LatexToken& token = tokens[i];
    if (token.kind == LatexToken::Kind::kNumber || token.is(")") || token.is("}")) {
      after_value = true;
      continue;
    }
    const bool joins = token.is("+") || token.is("-") || token.is("*") || token.is("/");
    if (!joins && !token.is("(") && !token.is("{") && !token.is("^")) return false;
    // A sign stands behind no value. 3 * 10^5 is how a number is written.
    const bool scientific =
        token.is("*") && i + 2 < tokens.size() && tokens[i + 1].is("10") && tokens[i + 2].is("^");
    if (joins && after_value && !scientific) {
      ++operators;
      fractions += token.is("/") && !is_whole_quotient(tokens, i);
    }
    after_value = false;
  }
  return operators > 1 || operators > fractions;
}

std::optional<AnswerText> find_answer(std::string_view response, AnswerRules rules) {
  const bool mark = response.rfind(kHashes) != std::string_view::npos ||
                    last_box(response) != std::string_view::npos;
  if (mark || rules.strict) {
    auto marked = find_marked_answer(response, /*is_right=*/false);
    if (!marked || marked->text.empty()) return std::nullopt;
    return marked;
  }
  std::string_view tail = response;
  if (tail.size() > kAnswerTailBytes) tail.remove_prefix(tail.size() - kAnswerTailBytes);
  const auto phrase = after_phrase(tail);
  std::string_view found = trimmed(phrase.value_or(tail));
  bool percent = false;
  const auto is_answer = [&](std::string_view text) {
    return reads_as_math(text) && (rules.terms || !is_open_term(text));
  };
  if (!is_answer(found)) {
    const auto formula = last_formula(found);
    const auto number = last_number(found);
    // Words alone are an answer where nothing else stands: "Yes".
    if (formula && is_answer(*formula))
      found = *formula;
    else if (number) {
      percent = percent_behind(
          found.substr(static_cast<size_t>(number->data() - found.data()) + number->size()));
      found = *number;
    } else if (!phrase && found.find('\n') != std::string_view::npos)
      return std::nullopt;
  }
  if (found.empty()) return std::nullopt;
  return AnswerText{.text = std::string(found), .marked = false, .percent = percent};
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
