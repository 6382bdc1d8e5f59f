#include "core/chat/jinja_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "core/chat/jinja_arguments.h"
#include "core/chat/jinja_json.h"
#include "core/chat/jinja_operators.h"
#include "core/chat/jinja_string.h"
#include "core/chat/jinja_tests.h"
#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

using V = const Value&;
using A = const Arguments&;

struct Filter {
  std::string_view name;
  Value (*apply)(const Value& subject, const Arguments& arguments, Budget& budget);
};

// --- attributes: "function.name", "0"

Value one_attribute(Value value, std::string_view path, Budget& budget) {
  while (true) {
    const size_t dot = path.find('.');
    const std::string part(path.substr(0, dot));
    // Nine digits fit an int, so std::stoi() below cannot throw. A longer number is looked up as a
    // key.
    const bool index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = subscript(value, index ? Value(int64_t{std::stoi(part)}) : Value(part), budget);
    if (dot == std::string_view::npos) return value;
    path.remove_prefix(dot + 1);
  }
}

// The value that an `attribute` argument names: by a path or an index; nothing: the value itself.
Value by_attribute(V value, V attribute, Budget& budget) {
  if (attribute.is_none()) return value;
  if (attribute.text()) return one_attribute(value, *attribute.text(), budget);
  return subscript(value, to_integer(attribute), budget);
}

// --- order, by default without regard to case

Value folded(V value, bool case_sensitive) {
  return !case_sensitive && value.text() ? Value(to_lower(*value.text())) : value;
}

struct Keyed {
  std::vector<Value> key;
  Value item;
};

// Stable. std::sort would want a strict order even of NaNs; a merge sort takes any answer.
void sort_keyed(std::vector<Keyed>& rows, bool reverse, Budget& budget) {
  auto before = [&](const Keyed& a, const Keyed& b) {
    for (size_t i = 0; i < a.key.size(); ++i) {
      if (equal(a.key[i], b.key[i], budget)) continue;
      const int sign = order(a.key[i], b.key[i], budget);
      // The order is turned in the comparison and not by reversing the rows: Python keeps equal
      // items in their first order also under reverse=true.
      return sign == (reverse ? 1 : -1);
    }
    return false;
  };
  std::vector<Keyed> merged(rows.size());
  for (size_t width = 1; width < rows.size(); width *= 2) {
    for (size_t begin = 0; begin < rows.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, rows.size());
      const size_t end = std::min(begin + 2 * width, rows.size());
      for (size_t left = begin, right = middle, out = begin; out < end; ++out) {
        const bool take_right = right < end && (left == middle || before(rows[right], rows[left]));
        merged[out] = std::move(rows[take_right ? right++ : left++]);
      }
    }
    rows.swap(merged);
  }
}

Value sort_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::string> paths;
  // sort() alone takes several attributes, "name,age"; the other filters read a comma as part of a
  // name.
  if (bound.given(2) && bound.find(2)->text())
    paths = split(*bound.find(2)->text(), ",", -1, Side::kLeft, budget);
  std::vector<Keyed> rows;
  for (Value& item : iterate(subject, budget)) {
    Keyed row;
    for (const std::string& path : paths)
      row.key.push_back(folded(one_attribute(item, path, budget), bound.flag(1, false)));
    if (paths.empty())
      row.key.push_back(folded(by_attribute(item, bound.value(2), budget), bound.flag(1, false)));
    row.item = std::move(item);
    rows.push_back(std::move(row));
  }
  sort_keyed(rows, bound.flag(0, false), budget);
  std::vector<Value> out;
  for (Keyed& row : rows) out.push_back(std::move(row.item));
  return Value::list(std::move(out));
}

Value dictsort_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") throw Error("dictsort sorts by 'key' or 'value'");
  if (!subject.dict()) throw Error("dictsort wants a dict, not '{}'", type_name(subject));
  std::vector<Keyed> rows;
  budget.spend(subject.dict()->cost);
  for (const auto& [key, value] : subject.dict()->entries) {
    rows.push_back({{folded(by == "key" ? Value(key) : value, bound.flag(0, false))},
                    Value::tuple({key, value})});
  }
  sort_keyed(rows, bound.flag(2, false), budget);
  std::vector<Value> out;
  for (Keyed& row : rows) out.push_back(std::move(row.item));
  return Value::list(std::move(out));
}

Value extreme(std::string_view name, V subject, A arguments, Operator wanted, Budget& budget) {
  const BoundArguments bound(name, arguments, {"case_sensitive", "attribute"});
  std::optional<Value> best, best_key;
  for (Value& item : iterate(subject, budget)) {
    Value key = folded(by_attribute(item, bound.value(1), budget), bound.flag(0, false));
    if (best && !compare(wanted, key, *best_key, budget)) continue;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
}

Value unique_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> out, seen;
  for (Value& item : iterate(subject, budget)) {
    Value key = folded(by_attribute(item, bound.value(1), budget), bound.flag(0, false));
    if (std::any_of(seen.begin(), seen.end(), [&](V other) { return equal(other, key, budget); }))
      continue;
    seen.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

// --- map and select

Arguments from(A arguments, size_t first) {
  Arguments rest{{}, arguments.named};
  for (size_t i = first; i < arguments.positional.size(); ++i)
    rest.positional.push_back(arguments.positional[i]);
  return rest;
}

const std::string& name_argument(std::string_view filter, A arguments, size_t at) {
  if (arguments.positional.size() <= at || !arguments.positional[at].text())
    throw Error("{} wants a name in quotes", filter);
  return *arguments.positional[at].text();
}

// Jinja maps and selects nothing of what is false: of the none in place of a list, too.
std::vector<Value> iterate_true(V subject, Budget& budget) {
  return truth(subject) ? iterate(subject, budget) : std::vector<Value>();
}

Value map_filter(V subject, A arguments, Budget& budget) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    // map(attribute=...) has no positional argument; with one, its first names a filter.
    const BoundArguments bound("map", arguments, {"attribute", "default"}, 1);
    for (V item : iterate_true(subject, budget)) {
      Value value = by_attribute(item, bound.value(0), budget);
      out.push_back(value.is_undefined() ? bound.value(1, value) : value);
    }
  } else {
    const std::string& filter = name_argument("map", arguments, 0);
    const Arguments rest = from(arguments, 1);
    for (V item : iterate_true(subject, budget))
      out.push_back(apply_filter(filter, item, rest, budget));
  }
  return Value::generator(std::move(out));
}

// select, reject, selectattr, rejectattr.
Value selected(std::string_view filter, V subject, A arguments, bool by_member, bool wanted,
               Budget& budget) {
  const size_t at = by_member ? 1 : 0;
  if (by_member && arguments.positional.empty()) throw Error("{} wants an attribute", filter);
  const bool by_test = arguments.positional.size() > at;
  const Arguments rest = from(arguments, at + 1);
  std::vector<Value> out;
  for (Value& item : iterate_true(subject, budget)) {
    const Value value = by_member ? by_attribute(item, arguments.positional[0], budget) : item;
    const bool holds = by_test
                           ? apply_test(name_argument(filter, arguments, at), value, rest, budget)
                           : truth(value);
    if (holds == wanted) out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

// --- numbers

// As Python's int() and float() read a text, but for the digits of other scripts and for "1_000",
// which are refused. nullopt: no number.
template <class Number>
std::optional<Number> parsed(std::string_view text) {
  text = strip(text, std::nullopt, Side::kBoth);
  if (std::any_of(text.begin(), text.end(), [](char c) { return c == '_' || (c & 0x80); }))
    throw Error("a number of other characters than ASCII, or with '_', is not read here");
  // from_chars() reads no plus sign. "+-1" is no number to Python, and would be one without the
  // check.
  if (text.starts_with('+') && !text.substr(1).starts_with('-')) text.remove_prefix(1);
  if (text.ends_with(')')) return std::nullopt;  // C++ reads "nan(...)"
  Number value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec == std::errc::result_out_of_range) throw Error("the number {} is too large", text);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Value truncated(double value, V fallback) {
  if (std::isnan(value) || std::isinf(value)) return fallback;
  // Just below 2^63, past which the conversion to int64_t is undefined behaviour.
  if (std::abs(value) >= 9.2e18) throw Error("a number has more than 64 bits");
  return static_cast<int64_t>(value);
}

Value int_filter(V subject, A arguments, Budget&) {
  const BoundArguments bound("int", arguments, {"default"});
  const Value fallback = bound.value(0, int64_t{0});
  if (const auto* undefined = subject.as<Undefined>()) throw Error("{}", *undefined->message);
  if (const double* real = subject.as<double>()) return truncated(*real, fallback);
  if (subject.is_number()) return to_integer(subject);
  if (!subject.text()) return fallback;
  // Jinja tries int(text) first and then int(float(text)), so that "3.7" gives 3.
  if (const auto value = parsed<int64_t>(*subject.text())) return *value;
  const auto real = parsed<double>(*subject.text());
  return real ? truncated(*real, fallback) : fallback;
}

Value float_filter(V subject, A arguments, Budget&) {
  const BoundArguments bound("float", arguments, {"default"});
  if (const auto* undefined = subject.as<Undefined>()) throw Error("{}", *undefined->message);
  if (const double* real = subject.as<double>()) return *real;
  if (subject.is_number()) return static_cast<double>(to_integer(subject));
  const auto real = subject.text() ? parsed<double>(*subject.text()) : std::nullopt;
  return real ? Value(*real) : bound.value(0, 0.0);
}

Value round_filter(V subject, A arguments, Budget&) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.text(1, "common");
  if (!subject.is_number()) throw Error("round wants a number, not '{}'", type_name(subject));
  if (precision < 0 || precision > 300) throw Error("round wants a precision from 0 to 300");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Error("method must be common, ceil or floor");
  if (!subject.as<double>() && method == "common") return to_integer(subject);
  const double value =
      subject.as<double>() ? *subject.as<double>() : static_cast<double>(to_integer(subject));
  // Python rounds the decimal digits of the exact value, halves to even: what printing does.
  if (method == "common") return std::stod(fmt::format("{:.{}f}", value, precision));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale);
  // Python goes on with an integer of any size, which has no -0.
  if (precision > 15 || !(std::abs(scaled) < 0x1p53)) throw Error("round: a number too large");
  return (scaled + 0.0) / scale;
}

Value abs_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("abs", arguments, {});
  if (subject.as<double>()) return std::abs(*subject.as<double>());
  return compare(Operator::kLess, subject, int64_t{0}, budget) ? negative(subject)
                                                               : positive(subject);
}

Value sum_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound.value(1, int64_t{0});
  if (total.text()) throw Error("sum adds no strings");
  for (V item : iterate(subject, budget))
    total = calculate(Operator::kAdd, total, by_attribute(item, bound.value(0), budget), budget);
  return total;
}

// --- texts

Value indent_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  std::string indention;
  if (bound.given(0) && bound.find(0)->text()) {
    indention = *bound.find(0)->text();
  } else {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    budget.spend(width);
    indention.assign(static_cast<size_t>(width), ' ');
  }
  if (!subject.text()) throw Error("indent wants a string, not '{}'", type_name(subject));
  // Jinja adds the newline so that the last line counts even when it is empty.
  const std::vector<std::string> lines =
      split_lines(*subject.text() + "\n", /*keep_ends=*/false, budget);
  std::string out = bound.flag(1, false) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    budget.spend_bytes(indention.size() + lines[i].size());
    if (i > 0) out += '\n';
    if (i > 0 && (bound.flag(2, false) || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  return out;
}

Value replace_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const std::string text = to_text(subject, budget), old = to_text(*bound.find(0), budget),
                    now = to_text(*bound.find(1), budget);
  budget.spend_search(text.size(), old.size());
  // An upper bound of the growth, spent before the text is made: each place grows by `new` at most.
  budget.spend(static_cast<int64_t>(text.size() / std::max<size_t>(old.size(), 1) + 1) *
               static_cast<int64_t>(now.size() / 16 + 1));
  return replace(text, old, now, bound.integer(2, -1));
}

// Words as Jinja cuts them: blanks, minus signs and opening brackets go before a capital.
Value title_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("title", arguments, {});
  std::string out = to_lower(to_text(subject, budget));
  bool begins = true;
  for (size_t at = 0, here = 0; at < out.size(); here = at) {
    const char32_t c = text::next_code_point(out, at);
    if (begins && c >= 'a' && c <= 'z') out[here] = static_cast<char>(c - 32);
    begins = is_python_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string::npos;
  }
  return out;
}

Value trim_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("trim", arguments, {"chars"});
  const std::string text = to_text(subject, budget);
  if (!bound.given(0)) return std::string(strip(text, std::nullopt, Side::kBoth));
  return std::string(strip(text, bound.text(0, ""), Side::kBoth));
}

Value join_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound.find(0) ? to_text(*bound.find(0), budget) : "";
  std::string out;
  bool first = true;
  for (V item : iterate(subject, budget)) {
    const std::string text = to_text(by_attribute(item, bound.value(1), budget), budget);
    budget.spend_bytes(separator.size() + text.size());
    if (!std::exchange(first, false)) out += separator;
    out += text;
  }
  return out;
}

Value tojson_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments bound("tojson", arguments,
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii_only = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.given(1)) {
    // json.dumps() leaves the blank behind a comma out as soon as it breaks lines.
    style.item_separator = std::string(",");  // g++ 12 warns of an assignment from ","
    if (bound.find(1)->text()) {
      style.indent = *bound.find(1)->text();
    } else {
      const int64_t width = bound.integer(1, 0);
      if (width > kMaxJsonIndent) throw Error("tojson indents by at most {}", kMaxJsonIndent);
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (bound.given(2)) {
    const Items* pair = bound.find(2)->indexed();
    if (!pair || pair->sequence->items.size() != 2 || !pair->sequence->items[0].text() ||
        !pair->sequence->items[1].text())
      throw Error("tojson wants separators as two strings: (', ', ': ')");
    style.item_separator = *pair->sequence->items[0].text();
    style.key_separator = *pair->sequence->items[1].text();
  }
  return to_json(subject, style, budget);
}

// --- the rest

Value default_filter(V subject, A arguments, Budget&) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  // A value of none is defined: it stays unless the second argument asks for the truth of the
  // value.
  const bool replaced = subject.is_undefined() || (bound.flag(1, false) && !truth(subject));
  return replaced ? bound.value(0, std::string()) : subject;
}

Value first_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("first", arguments, {});
  std::vector<Value> items = iterate(subject, budget);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("last", arguments, {});
  if (subject.items(Items::Kind::kGenerator)) throw Error("'generator' object is not reversible");
  std::vector<Value> items = iterate(subject, budget);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("reverse", arguments, {});
  if (subject.text()) return slice(subject, Value(), Value(), int64_t{-1}, budget);
  std::vector<Value> items = iterate(subject, budget);
  std::reverse(items.begin(), items.end());
  // Python cannot reverse a generator: Jinja makes a list of it.
  return Value::list(std::move(items), subject.items(Items::Kind::kGenerator)
                                           ? Items::Kind::kList
                                           : Items::Kind::kGenerator);
}

Value items_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("items", arguments, {});
  std::vector<Value> out;
  if (!subject.is_undefined()) {
    if (!subject.dict()) throw Error("Can only get item pairs from a mapping.");
    budget.spend(subject.dict()->cost);
    for (const auto& [key, value] : subject.dict()->entries)
      out.push_back(Value::tuple({key, value}));
  }
  return Value::generator(std::move(out));
}

Value length_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("length", arguments, {});
  if (subject.text()) budget.spend_bytes(subject.text()->size());
  return length(subject);
}

Value list_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("list", arguments, {});
  return Value::list(iterate(subject, budget));
}

Value string_filter(V subject, A arguments, Budget& budget) {
  const BoundArguments none("string", arguments, {});
  return subject.text() ? subject : Value(to_text(subject, budget));
}

// Sorted: the list of names is a message.
const Filter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize",
     [](V v, A a, Budget& b) -> Value {
       return BoundArguments("capitalize", a, {}), capitalized(to_text(v, b));
     }},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"float", float_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"lower",
     [](V v, A a, Budget& b) -> Value {
       return BoundArguments("lower", a, {}), to_lower(to_text(v, b));
     }},
    {"map", map_filter},
    {"max", [](V v, A a, Budget& b) { return extreme("max", v, a, Operator::kGreater, b); }},
    {"min", [](V v, A a, Budget& b) { return extreme("min", v, a, Operator::kLess, b); }},
    {"reject", [](V v, A a, Budget& b) { return selected("reject", v, a, false, false, b); }},
    {"rejectattr",
     [](V v, A a, Budget& b) { return selected("rejectattr", v, a, true, false, b); }},
    {"replace", replace_filter},
    {"reverse", reverse_filter},
    {"round", round_filter},
    {"safe",
     [](V v, A a, Budget& b) {
       return BoundArguments("safe", a, {}), Value::safe(v.text() ? v : Value(to_text(v, b)));
     }},
    {"select", [](V v, A a, Budget& b) { return selected("select", v, a, false, true, b); }},
    {"selectattr", [](V v, A a, Budget& b) { return selected("selectattr", v, a, true, true, b); }},
    {"sort", sort_filter},
    {"string", string_filter},
    {"sum", sum_filter},
    {"title", title_filter},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"unique", unique_filter},
    {"upper",
     [](V v, A a, Budget& b) -> Value {
       return BoundArguments("upper", a, {}), to_upper(to_text(v, b));
     }},
};

const Filter* find(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [&](const Filter& filter) { return filter.name == name; });
  return it == std::end(kFilters) ? nullptr : it;
}

}  // namespace

bool has_filter(std::string_view name) { return find(name) != nullptr; }

std::string filter_names() {
  std::string names;
  for (const Filter& filter : kFilters)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", filter.name);
  return names;
}

Value apply_filter(std::string_view name, const Value& subject, const Arguments& arguments,
                   Budget& budget) {
  // Any filter may copy its subject, so the copy is paid for in one place.
  budget.spend_bytes(subject.text() ? subject.text()->size() : 0);
  const Filter* filter = find(name);
  if (!filter) throw Error("no filter '{}'; there are: {}", name, filter_names());
  return filter->apply(subject, arguments, budget);
}

}  // namespace tailrace::chat::jinja
