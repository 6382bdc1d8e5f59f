#include "core/chat/jinja_tests.h"

#include <algorithm>
#include <optional>

#include "core/base/join_texts.h"
#include "core/chat/jinja_arguments.h"
#include "core/chat/jinja_operators.h"
#include "core/chat/jinja_string.h"

namespace tailrace::chat::jinja {
namespace {

using V = const Value&;

struct Test {
  std::string_view name;
  bool (*holds)(const Value& subject, Budget& budget);
};

const Value* flag(V value, bool wanted) {
  return value.as<bool>() && *value.as<bool>() == wanted ? &value : nullptr;
}

bool is_remainder(V value, int64_t divisor, int64_t wanted, Budget& budget) {
  // The remainder has the sign of the divisor, so -3 is odd as in Python.
  const Value rest = calculate(Operator::kModulo, value, divisor, budget);
  return equal(rest, wanted, budget);
}

bool is_sequence(V value) {
  if (value.items(Items::Kind::kView)) throw Error("of range() and views 'sequence' is not known");
  return value.is_undefined() || value.text() || value.dict() || value.indexed();
}

// Sorted: the list of names is a message.
const Test kTests[] = {
    {"boolean", [](V v, Budget&) { return v.as<bool>() != nullptr; }},
    {"callable",
     [](V v, Budget&) {
       return v.is_undefined() || v.as<std::shared_ptr<const Function>>() ||
              v.as<std::shared_ptr<Loop>>();
     }},
    {"defined", [](V v, Budget&) { return !v.is_undefined(); }},
    {"even", [](V v, Budget& b) { return is_remainder(v, 2, 0, b); }},
    {"false", [](V v, Budget&) { return flag(v, false) != nullptr; }},
    {"float", [](V v, Budget&) { return v.as<double>() != nullptr; }},
    // Jinja excludes booleans here, although bool is a kind of int in Python.
    {"integer", [](V v, Budget&) { return v.as<int64_t>() != nullptr; }},
    {"iterable", [](V v, Budget&) { return is_iterable(v); }},
    {"lower",
     [](V v, Budget& b) {
       const std::string text = to_text(v, b);
       // str.islower() wants one letter at least that has a case.
       return to_lower(text) == text && to_upper(text) != text;
     }},
    {"mapping", [](V v, Budget&) { return v.dict() != nullptr; }},
    {"none", [](V v, Budget&) { return v.is_none(); }},
    {"number", [](V v, Budget&) { return v.is_number(); }},
    {"odd", [](V v, Budget& b) { return is_remainder(v, 2, 1, b); }},
    {"sequence", [](V v, Budget&) { return is_sequence(v); }},
    {"string", [](V v, Budget&) { return v.text() != nullptr; }},
    {"true", [](V v, Budget&) { return flag(v, true) != nullptr; }},
    {"undefined", [](V v, Budget&) { return v.is_undefined(); }},
    {"upper",
     [](V v, Budget& b) {
       const std::string text = to_text(v, b);
       return to_upper(text) == text && to_lower(text) != text;
     }},
};

struct Comparison {
  std::string_view name;
  Operator op;
};

constexpr Comparison kComparisons[] = {
    {"!=", Operator::kNotEqual},     {"<", Operator::kLess},
    {"<=", Operator::kLessEqual},    {"==", Operator::kEqual},
    {">", Operator::kGreater},       {">=", Operator::kGreaterEqual},
    {"eq", Operator::kEqual},        {"equalto", Operator::kEqual},
    {"ge", Operator::kGreaterEqual}, {"greaterthan", Operator::kGreater},
    {"gt", Operator::kGreater},      {"in", Operator::kIn},
    {"le", Operator::kLessEqual},    {"lessthan", Operator::kLess},
    {"lt", Operator::kLess},         {"ne", Operator::kNotEqual},
};

template <class T, size_t N>
const T* find(const T (&table)[N], std::string_view name) {
  const T* it = std::find_if(table, table + N, [&](const T& entry) { return entry.name == name; });
  return it == table + N ? nullptr : it;
}

// Python's `is`: the same object, which is known of true, false and none.
bool is_same(V a, V b, Budget& budget) {
  if (!b.as<bool>() && !b.is_none()) throw Error("'sameas' knows true, false and none");
  return type_name(a) == type_name(b) && equal(a, b, budget);
}

}  // namespace

bool has_test(std::string_view name) {
  return find(kTests, name) || find(kComparisons, name) || name == "divisibleby" ||
         name == "sameas";
}

std::string test_names() {
  std::vector<std::string_view> names = {"divisibleby", "sameas"};
  for (const Test& test : kTests) names.push_back(test.name);
  for (const Comparison& comparison : kComparisons) names.push_back(comparison.name);
  std::sort(names.begin(), names.end());
  return join_texts(names, ", ");
}

bool apply_test(std::string_view name, const Value& subject, const Arguments& arguments,
                Budget& budget) {
  budget.spend(1);
  if (const Test* test = find(kTests, name)) {
    const BoundArguments none(name, arguments, {});
    return test->holds(subject, budget);
  }
  const BoundArguments bound(name, arguments, {"other"}, 1);
  const Value other = bound.value(0);
  if (const Comparison* comparison = find(kComparisons, name))
    return compare(comparison->op, subject, other, budget);
  if (name == "divisibleby")
    return equal(calculate(Operator::kModulo, subject, other, budget), int64_t{0}, budget);
  if (name != "sameas") throw Error("no test '{}'; there are: {}", name, test_names());
  return is_same(subject, other, budget);
}

}  // namespace tailrace::chat::jinja
