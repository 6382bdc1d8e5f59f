#include "reward/verifiers/math_answer.h"

#include <algorithm>
#include <iterator>
#include <numbers>
#include <span>
#include <utility>

#include "reward/verifiers/latex_tokens.h"
#include "reward/verifiers/math_expression.h"

namespace tailrace {

namespace {

using Tokens = std::span<const LatexToken>;
using AnswerKind = MathAnswer::Kind;

// Each level may read the same tokens several times; what lies deeper is compared as text.
constexpr int kMaxAnswerDepth = 20;

int depth_step(const LatexToken& token) {
  for (const std::string_view open : {"(", "[", "{", "\\{"})
    if (token.is(open)) return 1;
  for (const std::string_view close : {")", "]", "}", "\\}"})
    if (token.is(close)) return -1;
  if (token.kind != LatexToken::Kind::kName) return 0;
  return token.text.starts_with("\\begin ") ? 1 : token.text.starts_with("\\end ") ? -1 : 0;
}

bool is_relation(const LatexToken& token) {
  for (const std::string_view sign : {"=", "<", ">", "<=", ">=", "!=", "\\in", "\\approx"})
    if (token.is(sign)) return true;
  return false;
}

// The parts between those tokens outside of brackets that `divides` names.
template <class Divides>
std::vector<Tokens> split(Tokens tokens, Divides divides,
                          std::vector<std::string>* signs = nullptr) {
  std::vector<Tokens> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    depth += depth_step(tokens[i]);
    if (depth != 0 || !divides(tokens[i])) continue;
    parts.push_back(tokens.subspan(begin, i - begin));
    if (signs) signs->push_back(tokens[i].text);
    begin = i + 1;
  }
  parts.push_back(tokens.subspan(begin));
  return parts;
}

// Whether the first token opens what the last one closes.
bool is_enclosed(Tokens tokens) {
  if (tokens.size() < 2 || depth_step(tokens.front()) != 1 || depth_step(tokens.back()) != -1)
    return false;
  int depth = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i)
    if ((depth += depth_step(tokens[i])) == 0) return false;
  return true;
}

MathAnswer parse(Tokens tokens, int depth);
std::optional<MathAnswer> tuple_of(const MathAnswer& list, const MathAnswer* names);

std::vector<MathAnswer> parse_each(const std::vector<Tokens>& parts, int depth) {
  std::vector<MathAnswer> items;
  items.reserve(parts.size());
  for (const Tokens part : parts) items.push_back(parse(part, depth));
  return items;
}

MathAnswer sequence(std::vector<MathAnswer> items, std::string open, std::string close,
                    bool ordered) {
  return {.kind = AnswerKind::kSequence,
          .items = std::move(items),
          .open = std::move(open),
          .close = std::move(close),
          .ordered = ordered};
}

// The items of a set or list, where "1 \pm 2" is two of them.
std::vector<MathAnswer> spliced(std::vector<MathAnswer> items) {
  std::vector<MathAnswer> all;
  for (MathAnswer& item : items) {
    if (item.kind == AnswerKind::kSequence && item.open.empty() && !item.ordered)
      std::ranges::move(item.items, std::back_inserter(all));
    else
      all.push_back(std::move(item));
  }
  return all;
}

bool is_comma(const LatexToken& token) { return token.is(",") || token.is(";"); }

// A column and a row are tuples; else rows of rows.
MathAnswer matrix(Tokens inner, int depth) {
  std::vector<MathAnswer> rows;
  size_t widest = 0;
  for (const Tokens row : split(inner, [](const LatexToken& t) { return t.is("\\\\"); })) {
    if (row.empty()) continue;  // after the last row break
    rows.push_back(
        sequence(parse_each(split(row, [](const LatexToken& t) { return t.is("&"); }), depth), "(",
                 ")", true));
    widest = std::max(widest, rows.back().items.size());
  }
  if (rows.size() == 1) return rows[0];
  if (widest == 1)
    for (MathAnswer& row : rows) row = MathAnswer(row.items[0]);
  return sequence(std::move(rows), "(", ")", true);
}

// A list without brackets: solutions have no order, and what holds letters or words may be an
// ordering.
MathAnswer list(std::vector<MathAnswer> parsed) {
  std::vector<MathAnswer> items = spliced(std::move(parsed));
  const bool ordered = std::ranges::any_of(items, [](const MathAnswer& item) {
    return item.kind == AnswerKind::kText || (item.number && item.number->is_symbolic());
  });
  return sequence(std::move(items), "", "", ordered);
}

// AB, (AB) and dog: nothing says that the letters are factors, so their order counts.
bool is_word(Tokens tokens) {
  if (is_enclosed(tokens) && tokens.front().is("(")) tokens = tokens.subspan(1, tokens.size() - 2);
  return tokens.size() > 1 && std::ranges::all_of(tokens, [](const LatexToken& token) {
           return token.kind == LatexToken::Kind::kLetter && token.text.size() == 1;
         });
}

MathAnswer value_of(Tokens tokens, int depth) {
  if (is_enclosed(tokens)) {
    const Tokens inner = tokens.subspan(1, tokens.size() - 2);
    const std::string &open = tokens.front().text, &close = tokens.back().text;
    if (open == "{" && close == "}") return parse(inner, depth);
    if (open == "\\begin matrix") return matrix(inner, depth);
    if (open == "\\{" && inner.empty()) return sequence({}, open, close, false);
    const std::vector<Tokens> parts = split(inner, is_comma);
    if (open == "\\{") return sequence(spliced(parse_each(parts, depth)), open, close, false);
    if (parts.size() > 1 && !open.starts_with("\\begin"))
      return sequence(parse_each(parts, depth), open, close, true);
  }
  const auto has_either = [](const LatexToken& t) { return t.is("\\pm") || t.is("\\mp"); };
  const auto one = evaluate_math(tokens, false);
  if (is_word(tokens)) return {.number = one && one->is_symbolic() ? one : std::nullopt};
  if (!one) return {};
  MathAnswer answer{.kind = AnswerKind::kNumber, .number = one, .degrees = tokens.back().is("°")};
  if (std::ranges::none_of(tokens, has_either)) return answer;
  const auto other = evaluate_math(tokens, true);
  if (!other) return {};
  return sequence({answer, {.kind = AnswerKind::kNumber, .number = other}}, "", "", false);
}

// "p = 5, q = 2; p = 7, q = 2" as (5, 2), (7, 2). None: it is no such list.
std::optional<MathAnswer> list_of_tuples(Tokens tokens, int depth) {
  const auto parts = split(tokens, [](const LatexToken& t) { return t.is(";"); });
  std::vector<MathAnswer> tuples;
  for (size_t i = 0; i < parts.size() && parts.size() > 1; ++i) {
    const auto tuple = tuple_of(parse(parts[i], depth), nullptr);
    if (!tuple) return std::nullopt;
    tuples.push_back(*tuple);
  }
  if (tuples.empty()) return std::nullopt;
  return sequence(std::move(tuples), "", "", false);
}

MathAnswer parse_unnamed(Tokens tokens, int depth) {
  // The whole answer alone: its parts are read again where they are no tuples.
  if (depth == 1)
    if (auto tuples = list_of_tuples(tokens, depth)) return std::move(*tuples);
  auto parts = split(tokens, [](const LatexToken& t) { return t.is("or"); });
  if (parts.size() == 1) parts = split(tokens, is_comma);
  // "2, 3, and 5" has a comma before its last word.
  if (parts.size() > 1) {
    std::vector<Tokens> all;
    for (const Tokens part : parts)
      for (const Tokens inner : split(part, is_comma))
        if (!inner.empty()) all.push_back(inner);
    return all.size() == 1 ? parse(all[0], depth) : list(parse_each(all, depth));
  }
  parts = split(tokens, [](const LatexToken& t) { return t.is("\\cup"); });
  if (parts.size() > 1) return sequence(parse_each(parts, depth), "\\cup", "", false);
  std::vector<std::string> signs;
  parts = split(tokens, is_relation, &signs);
  if (!signs.empty()) {
    const auto is_label = [](Tokens part) {
      const MathLabel label = math_label_of(part);
      return label == MathLabel::kName || label == MathLabel::kQuantity;
    };
    const auto value = std::ranges::find_if_not(parts.begin(), parts.end() - 1, is_label);
    return {.kind = AnswerKind::kRelation,
            .items = parse_each(parts, depth),
            .signs = std::move(signs),
            .label = math_label_of(parts[0]),
            .num_labels = static_cast<size_t>(value - parts.begin())};
  }
  parts = split(tokens, [](const LatexToken& t) { return t.is(":"); });
  if (parts.size() > 1 && std::ranges::none_of(parts, &Tokens::empty))
    return sequence(parse_each(parts, depth), ":", "", true);
  return value_of(tokens, depth);
}

MathAnswer parse(Tokens tokens, int depth) {
  MathAnswer answer;
  if (depth < kMaxAnswerDepth) answer = parse_unnamed(tokens, depth + 1);
  answer.plain = plain_text({tokens.begin(), tokens.end()});
  return answer;
}

// One letter or word, with an index or in front of its arguments: x, a_n, f(x), area.
bool is_name(const std::string& plain) {
  const size_t first = plain.find(' ');
  const bool one = first == std::string::npos || plain[first + 1] == '_' || plain[first + 1] == '(';
  if (plain == "not" || plain == "\\not") return false;
  const bool digit = !plain.empty() && plain[0] >= '0' && plain[0] <= '9';
  return one && !digit && !plain.empty() && plain.find_first_of("+-*/^=|") == std::string::npos;
}

// 45^\circ beside \pi/4 is the same angle.
std::optional<MathNumber> radians(const MathAnswer& answer) {
  return divide(*answer.number * MathNumber::constant(std::numbers::pi), MathNumber::whole(180));
}

// How what is left of = or \approx and what is right of it agree, when they are constants.
enum class Link { kNone, kLast, kBoth };  // the last value counts, or each of them
Link link_of(const MathAnswer& left, const std::string& sign, const MathAnswer& right) {
  if (!left.number || !right.number) return Link::kLast;
  if (left.degrees != right.degrees) {
    const auto a = left.degrees ? radians(left) : left.number;
    const auto b = right.degrees ? radians(right) : right.number;
    if (a && b && same(*a, *b)) return Link::kBoth;
  }
  if (same(*left.number, *right.number)) return Link::kLast;
  const bool rounded = is_rounding(*left.number, *right.number);
  if (sign == "\\approx")
    return rounded                                 ? Link::kBoth
           : is_about(*left.number, *right.number) ? Link::kLast
                                                   : Link::kNone;
  // "100/3 = 33.33" and "x = 2.33 = 7/3" are usual, and "71 = 72" is no answer.
  const bool is_decimal = (rounded && right.number->is_decimal()) ||
                          (is_rounding(*right.number, *left.number) && left.number->is_decimal());
  return is_decimal ? Link::kLast : Link::kNone;
}

bool is_fixed(const MathAnswer& answer) {
  if (answer.kind == AnswerKind::kSequence) return std::ranges::all_of(answer.items, is_fixed);
  return answer.kind == AnswerKind::kNumber && !answer.number->is_symbolic();
}

// Whether what stands in front of the first sign is a label of the last value.
bool is_labelled(const MathAnswer& relation, bool is_gold) {
  const MathAnswer &left = relation.items.front(), &last = relation.items.back();
  switch (relation.label) {
    case MathLabel::kRatio:
      if (left.items.size() == 2 && last.kind == AnswerKind::kNumber) return is_fixed(last);
      [[fallthrough]];
    case MathLabel::kTuple:
      return last.kind == AnswerKind::kSequence && last.open == left.open &&
             last.items.size() == left.items.size();
    case MathLabel::kQuantity:
      return is_fixed(last);
    // "x + y = 12" says what was asked for, when it is the right answer. In a response it may be
    // an equation on the way.
    case MathLabel::kUnknowns:
      return is_gold && is_fixed(last);
    case MathLabel::kName:
      return true;
    case MathLabel::kNone:
      return is_name(left.plain);
  }
  return false;
}

// The values that a relation gives: "x = 5", "f(x) = 2x", "AB = 5" and "x \in (0, 1)" name that on
// the right, "3 * 4 = 12" and "A = 3 * 4 = 12" the last one, and "x = 22/7 \approx 3.14" also the
// one that was rounded. None: it says something else.
std::vector<const MathAnswer*> values_of(const MathAnswer& answer, bool is_gold) {
  if (answer.kind != AnswerKind::kRelation) return {};
  const std::vector<MathAnswer>& items = answer.items;
  // "e \approx 2.7" is the number, and "e = 5" a name.
  const bool constant = items[0].number && !items[0].number->is_symbolic();
  const bool named = is_labelled(answer, is_gold) && !(constant && answer.signs[0] == "\\approx");
  if (named && answer.signs == std::vector<std::string>{"\\in"}) return {&items.back()};
  const auto is_equal = [](const std::string& sign) { return sign == "=" || sign == "\\approx"; };
  const auto is_constant = [](const MathAnswer& item) {
    return item.number && !item.number->is_symbolic();
  };
  if (!std::ranges::all_of(answer.signs, is_equal)) return {};
  const size_t last = items.size() - 1;
  // "x = y = 5" has a constant behind its names.
  const size_t names = is_fixed(items[last]) ? std::max<size_t>(answer.num_labels, 1) : 1;
  const size_t begin = named ? names : 0;
  const std::span<const MathAnswer> chain(items.begin() + static_cast<int64_t>(begin), items.end());
  if (!std::ranges::all_of(chain.first(chain.size() - named), is_constant)) return {};
  std::vector<const MathAnswer*> values{&items[last]};
  for (size_t i = begin; i < last; ++i) {
    const Link link = link_of(items[i], answer.signs[i], items[i + 1]);
    if (link == Link::kNone) return {};
    // Not further to the left: roundings of roundings lead away from the value.
    if (link == Link::kBoth && i + 1 == last) values.push_back(&items[i]);
  }
  return values;
}

bool same_items(const std::vector<MathAnswer>& gold, const std::vector<MathAnswer>& given) {
  return std::ranges::equal(gold, given,
                            [](const MathAnswer& a, const MathAnswer& b) { return same(a, b); });
}

// \{1, 2, 2\} is \{1, 2\}.
bool same_elements(const std::vector<MathAnswer>& gold, const std::vector<MathAnswer>& given) {
  const auto is_given = [&](const MathAnswer& wanted) {
    return std::ranges::any_of(given, [&](const auto& item) { return same(wanted, item); });
  };
  const auto is_wanted = [&](const MathAnswer& item) {
    return std::ranges::any_of(gold, [&](const auto& wanted) { return same(wanted, item); });
  };
  return std::ranges::all_of(gold, is_given) && std::ranges::all_of(given, is_wanted);
}

// A list may have a solution twice, and then both have it twice.
bool same_sets(const std::vector<MathAnswer>& gold, const std::vector<MathAnswer>& given) {
  if (gold.size() != given.size()) return false;
  std::vector<bool> used(given.size());
  return std::ranges::all_of(gold, [&](const MathAnswer& item) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (used[i] || !same(item, given[i])) continue;
      used[i] = true;
      return true;
    }
    return false;
  });
}

bool same_sequences(const MathAnswer& gold, const MathAnswer& given) {
  const auto is_set = [](const MathAnswer& a) { return a.open == "\\{" || a.open.empty(); };
  // "1, 2" and "\{1, 2\}" are the same solutions.
  const bool brackets = gold.open == given.open && gold.close == given.close;
  if (!brackets && !(is_set(gold) && is_set(given))) return false;
  if (gold.ordered) return same_items(gold.items, given.items);
  return brackets && gold.open == "\\{" ? same_elements(gold.items, given.items)
                                        : same_sets(gold.items, given.items);
}

// "x = 3, y = 2" as (3, 2): values of different names, in the order of `names`, or else of the
// alphabet. None: it is no such list.
std::optional<MathAnswer> tuple_of(const MathAnswer& list, const MathAnswer* names) {
  if (list.kind != AnswerKind::kSequence || !list.open.empty() || list.items.size() < 2)
    return std::nullopt;
  std::vector<std::pair<std::string, const MathAnswer*>> values;
  for (const MathAnswer& item : list.items) {
    if (item.label != MathLabel::kName || item.signs != std::vector<std::string>{"="})
      return std::nullopt;
    values.emplace_back(item.items[0].plain, &item.items[1]);
  }
  // The alphabet is how people order names that a tuple leaves out: (3, 2) for x = 3, y = 2.
  std::ranges::sort(values, {}, &decltype(values)::value_type::first);
  if (std::ranges::adjacent_find(values, {}, &decltype(values)::value_type::first) != values.end())
    return std::nullopt;
  MathAnswer tuple = sequence({}, "(", ")", true);
  if (names && names->items.size() != values.size()) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = names ? std::ranges::find(values, names->items[i].plain,
                                                 &decltype(values)::value_type::first)
                             : values.begin() + static_cast<int64_t>(i);
    if (value == values.end()) return std::nullopt;
    tuple.items.push_back(*value->second);
  }
  return tuple;
}

// The same where one of the two is a list and the other a tuple, (3, 2) or (x, y) = (3, 2).
std::optional<MathAnswer> as_tuple(const MathAnswer& list, const MathAnswer& other) {
  if (other.kind == AnswerKind::kRelation && other.label == MathLabel::kTuple)
    return tuple_of(list, &other.items[0]);
  if (other.kind == AnswerKind::kSequence && other.open == "(" && other.close == ")")
    return tuple_of(list, nullptr);
  return std::nullopt;
}

std::string turned(const std::string& sign) {
  return sign == "<" ? ">" : sign == ">" ? "<" : sign == "<=" ? ">=" : sign == ">=" ? "<=" : sign;
}

MathAnswer turned(const MathAnswer& relation) {
  MathAnswer other = relation;
  std::ranges::reverse(other.items);
  std::ranges::reverse(other.signs);
  for (std::string& sign : other.signs) sign = turned(sign);
  return other;
}

// a x + b = c and 2 a x + 2 b = 2 c: left minus right, up to a factor.
bool same_equations(const MathAnswer& gold, const MathAnswer& given) {
  const auto difference = [](const MathAnswer& answer) -> std::optional<MathNumber> {
    if (answer.items.size() != 2 || answer.signs[0] != "=") return std::nullopt;
    const auto &left = answer.items[0].number, &right = answer.items[1].number;
    return left && right ? std::optional(*left - *right) : std::nullopt;
  };
  const auto a = difference(gold), b = difference(given);
  return a && b && a->is_symbolic() && b->is_symbolic() && proportional(*a, *b);
}

bool same_relations(const MathAnswer& gold, const MathAnswer& given) {
  for (const MathAnswer& form : {given, turned(given)})
    if (gold.signs == form.signs && same_items(gold.items, form.items)) return true;
  return same_equations(gold, given);
}

// a < x <= b as (a, b]; x > a as (a, \infty). None: no letter between bounds.
std::optional<MathAnswer> interval_of(const MathAnswer& relation) {
  const auto is_order = [](const std::string& sign) { return sign[0] == '<' || sign[0] == '>'; };
  if (relation.kind != AnswerKind::kRelation || !std::ranges::all_of(relation.signs, is_order))
    return std::nullopt;
  MathAnswer up = relation.signs[0][0] == '<' ? relation : turned(relation);
  const auto is_letter = [](const MathAnswer& item) {
    return item.number && item.number->is_symbolic() && item.plain.find(' ') == std::string::npos;
  };
  const auto infinite = [](bool negative) {
    const MathNumber value = MathNumber::symbol("\\infty");
    return MathAnswer{.kind = AnswerKind::kNumber, .number = negative ? -value : value};
  };
  if (up.items.size() == 2 && is_letter(up.items[0])) {
    up.items.insert(up.items.begin(), infinite(true));
    up.signs.insert(up.signs.begin(), "<");
  } else if (up.items.size() == 2) {
    up.items.push_back(infinite(false));
    up.signs.push_back("<");
  }
  if (up.items.size() != 3 || !is_letter(up.items[1])) return std::nullopt;
  if (up.signs[0][0] != '<' || up.signs[1][0] != '<') return std::nullopt;
  return sequence({up.items[0], up.items[2]}, up.signs[0] == "<" ? "(" : "[",
                  up.signs[1] == "<" ? ")" : "]", true);
}

// "5 cm" and "5 km". Where one side says less, as "5" and "5 dollars per day" do, they agree.
bool other_units(const MathAnswer& gold, const MathAnswer& given) {
  const size_t both = std::min(gold.units.size(), given.units.size());
  return !std::equal(gold.units.begin(), gold.units.begin() + static_cast<int64_t>(both),
                     given.units.begin());
}

// AB, A B, A \cdot B and \text{AB} are the same text.
bool same_words(const MathAnswer& gold, const MathAnswer& given) {
  const auto letters = [](const MathAnswer& answer) {
    std::string text = answer.plain;
    std::erase_if(text, [](char c) { return c == ' ' || c == '*'; });
    if (text.starts_with('(') && text.ends_with(')')) text = text.substr(1, text.size() - 2);
    const bool all = std::ranges::all_of(
        text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
    return all ? text : std::string();
  };
  const std::string text = letters(gold);
  return !text.empty() && text == letters(given);
}

}  // namespace

bool has_names(const MathAnswer& answer) {
  if (answer.kind == AnswerKind::kRelation) return answer.label == MathLabel::kTuple;
  return answer.kind == AnswerKind::kSequence && answer.open.empty() && !answer.items.empty() &&
         std::ranges::all_of(answer.items,
                             [](const MathAnswer& item) { return item.label == MathLabel::kName; });
}

std::optional<MathAnswer> parse_math(std::string_view text) {
  std::vector<std::string> units;
  const auto tokens = latex_tokens(text, &units);
  if (!tokens || tokens->empty()) return std::nullopt;
  MathAnswer answer = parse(*tokens, 0);
  answer.units = std::move(units);
  return answer;
}

// From the most certain to the least: units can only refuse, equal texts are the same whatever they
// mean, and only then are names, relations and values taken apart.
bool same(const MathAnswer& gold, const MathAnswer& given) {
  if (other_units(gold, given)) return false;
  if (gold.plain == given.plain && !gold.plain.empty()) return true;
  if (const auto tuple = as_tuple(given, gold)) return same(gold, *tuple);
  if (const auto tuple = as_tuple(gold, given)) return same(*tuple, given);
  const auto gold_values = values_of(gold, /*is_gold=*/true),
             given_values = values_of(given, /*is_gold=*/false);
  const auto any_given = [&](const MathAnswer& value) {
    return std::ranges::any_of(given_values, [&](const auto* item) { return same(value, *item); });
  };
  const auto any_gold = [&](const auto& test) {
    return std::ranges::any_of(gold_values, [&](const auto* item) { return test(*item); });
  };
  if (gold.kind == AnswerKind::kRelation && given.kind == AnswerKind::kRelation) {
    const bool one_name = gold.items[0].plain == given.items[0].plain;
    // Under one name the values decide, and with different names both must say the same as
    // relations: "y = 5" is no "x = 5".
    if (one_name && !gold_values.empty() && !given_values.empty()) return any_gold(any_given);
    return same_relations(gold, given);
  }
  if (given.kind == AnswerKind::kRelation) {
    if (!given_values.empty()) return any_given(gold);
    const auto interval = gold.kind == AnswerKind::kSequence ? interval_of(given) : std::nullopt;
    return interval && same_sequences(gold, *interval);
  }
  if (gold.kind == AnswerKind::kRelation) {
    if (!gold_values.empty())
      return any_gold([&](const MathAnswer& value) { return same(value, given); });
    const auto interval = interval_of(gold);
    return interval && given.kind == AnswerKind::kSequence && same_sequences(*interval, given);
  }
  if (gold.kind == AnswerKind::kText || given.kind == AnswerKind::kText)
    return same_words(gold, given);
  if (gold.kind != given.kind) return false;
  if (gold.kind == AnswerKind::kNumber) return same(*gold.number, *given.number);
  return gold.kind == AnswerKind::kSequence && same_sequences(gold, given);
}

}  // namespace tailrace
