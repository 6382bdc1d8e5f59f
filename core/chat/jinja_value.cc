#include "core/chat/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/chat/jinja_string.h"
#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

int nesting_of(const Value& child) { return child.nesting() + 1; }

void check_nesting(int nesting) {
  if (nesting > kMaxNesting) throw Error("lists and dicts are nested deeper than {}", kMaxNesting);
}

// Holds all of an int64_t and of a double, so that comparisons are exact.
long double as_real(const Value& value) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  if (const bool* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const int64_t* integer = value.as<int64_t>()) return static_cast<long double>(*integer);
  return *value.as<double>();
}

int sign(auto a, auto b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }

int order_numbers(const Value& a, const Value& b) { return sign(as_real(a), as_real(b)); }

std::string repr_items(const Items& items, Budget& budget) {
  const bool tuple = items.kind == Items::Kind::kTuple;
  std::string out(tuple ? "(" : "[");
  for (const Value& item : items.sequence->items) {
    if (out.size() > 1) out += ", ";
    out += to_repr(item, budget);
  }
  if (tuple && items.sequence->items.size() == 1) out += ',';
  out += tuple ? ')' : ']';
  return out;
}

std::string repr_dict(const Dict& dict, Budget& budget) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries) {
    if (out.size() > 1) out += ", ";
    budget.spend_bytes(key.size());
    out += python_repr(key) + ": " + to_repr(value, budget);
  }
  return out + '}';
}

}  // namespace

bool Loop::reaches(int64_t index) const {
  while (index >= static_cast<int64_t>(items->items.size())) {
    if (!let_more_in || !let_more_in()) return false;
  }
  return true;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value Value::undefined(std::string message) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(message))};
  return value;
}

Value Value::safe(const Value& text) {
  Value value = text;
  std::get<Text>(value.data_).safe = true;
  return value;
}

Value Value::list(std::vector<Value> items, Items::Kind kind) {
  auto sequence = std::make_shared<Sequence>();
  // The depth is kept with each value, so the bound costs no walk. It holds for every value, which
  // is why the recursions of equal(), order() and to_repr() have no bound of their own.
  for (const Value& item : items) sequence->nesting = std::max(sequence->nesting, nesting_of(item));
  check_nesting(sequence->nesting);
  sequence->items = std::move(items);
  Value value;
  value.data_ = Items{std::move(sequence), kind};
  return value;
}

Value Value::dict(std::vector<std::pair<std::string, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, item] : entries) {
    dict->nesting = std::max(dict->nesting, nesting_of(item));
    dict->cost += 1 + static_cast<int64_t>(key.size() / 16);
  }
  check_nesting(dict->nesting);
  dict->entries = std::move(entries);
  Value value;
  value.data_ = std::shared_ptr<const Dict>(std::move(dict));
  return value;
}

const Dict* Value::dict() const {
  const auto* dict = as<std::shared_ptr<const Dict>>();
  return dict ? dict->get() : nullptr;
}

const Items* Value::items(Items::Kind kind) const {
  const Items* items = as<Items>();
  return items && items->kind == kind ? items : nullptr;
}

const Items* Value::indexed() const {
  const Items* list = items(Items::Kind::kList);
  return list ? list : items(Items::Kind::kTuple);
}

int Value::nesting() const {
  if (const Items* items = as<Items>()) return items->sequence->nesting;
  if (const Dict* members = dict()) return members->nesting;
  if (const auto* loop = as<std::shared_ptr<Loop>>()) return (*loop)->items->nesting;
  if (const auto* function = as<std::shared_ptr<const Function>>())
    return (*function)->bound.nesting();
  return 0;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.as<bool>()) return "bool";
  if (value.as<int64_t>() || value.as<LargeInteger>()) return "int";
  if (value.as<double>()) return "float";
  if (value.text()) return "str";
  if (value.items(Items::Kind::kList)) return "list";
  if (value.items(Items::Kind::kTuple)) return "tuple";
  if (const Items* items = value.as<Items>())
    return items->kind == Items::Kind::kView ? "view" : "generator";
  if (value.dict()) return "dict";
  if (value.as<Namespace*>()) return "Namespace";
  return value.as<std::shared_ptr<Loop>>() ? "LoopContext" : "function";
}

std::string object_name(const Value& value) {
  return value.is_none() ? "None" : fmt::format("{} object", type_name(value));
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return as_real(value) != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Items* items = value.as<Items>())
    return items->kind == Items::Kind::kGenerator || !items->sequence->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  return true;
}

std::string to_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", value);
  // Python tells 1.0 from 1, and so must the text.
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string to_text(const Value& value, Budget& budget) {
  if (const std::string* text = value.text()) {
    budget.spend_bytes(text->size());
    return *text;
  }
  return value.is_undefined() ? "" : to_repr(value, budget);
}

std::string to_repr(const Value& value, Budget& budget) {
  budget.spend(1);
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const bool* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const int64_t* integer = value.as<int64_t>()) return fmt::format("{}", *integer);
  if (const LargeInteger* large = value.as<LargeInteger>()) return fmt::format("{}", large->value);
  if (const double* real = value.as<double>()) return to_text(*real);
  if (const std::string* text = value.text()) {
    if (value.as<Text>()->safe) throw Error("'safe' text within a list or dict is not printed");
    budget.spend_bytes(text->size());
    return python_repr(*text);
  }
  if (const Items* items = value.indexed()) return repr_items(*items, budget);
  if (const Dict* dict = value.dict()) return repr_dict(*dict, budget);
  throw Error("a {} has no text", type_name(value));
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() || value.as<Items>() || value.dict();
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> out;
  if (const Items* items = value.as<Items>()) {
    budget.spend(static_cast<int64_t>(items->sequence->items.size()));
    // A generator is used up by the first that walks over it, as in Python: all its copies share
    // the items.
    if (items->kind == Items::Kind::kGenerator) return std::exchange(items->sequence->items, {});
    return items->sequence->items;
  }
  if (const Dict* dict = value.dict()) {
    budget.spend(dict->cost);
    for (const auto& entry : dict->entries) out.emplace_back(entry.first);
  } else if (const std::string* text = value.text()) {
    budget.spend(static_cast<int64_t>(text->size()));
    for (size_t at = 0, begin = 0; at < text->size(); begin = at) {
      text::next_code_point(*text, at);
      out.emplace_back(text->substr(begin, at - begin));
    }
  } else if (!value.is_undefined()) {
    throw Error("'{}' object is not iterable", type_name(value));
  }
  return out;
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) return num_code_points(*text);
  const Items* items = value.as<Items>();
  if (items && items->kind != Items::Kind::kGenerator)
    return static_cast<int64_t>(items->sequence->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  throw Error("object of type '{}' has no len()", type_name(value));
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.text() && b.text()) {
    budget.spend_bytes(std::min(a.text()->size(), b.text()->size()));
    return *a.text() == *b.text();
  }
  const auto *large = a.as<LargeInteger>(), *other_large = b.as<LargeInteger>();
  if (large != nullptr || other_large != nullptr)
    return large != nullptr && other_large != nullptr && large->value == other_large->value;
  // The names of types part lists from tuples, which Python never holds equal.
  if (type_name(a) != type_name(b)) return false;
  if (const Dict* left = a.dict()) {
    const Dict* right = b.dict();
    if (left->entries.size() != right->entries.size()) return false;
    return std::all_of(left->entries.begin(), left->entries.end(), [&](const auto& entry) {
      budget.spend(right->cost);
      const Value* other = right->find(entry.first);
      return other && equal(entry.second, *other, budget);
    });
  }
  if (const Items* left = a.as<Items>()) {
    const Items* right = b.as<Items>();
    if (left->sequence == right->sequence) return true;
    if (left->kind == Items::Kind::kGenerator) return false;
    // Python's range, dict_keys and dict_values each compare by other rules, and a view is all
    // three here.
    if (left->kind == Items::Kind::kView) throw Error("range() and views are not compared: | list");
    return std::equal(left->sequence->items.begin(), left->sequence->items.end(),
                      right->sequence->items.begin(), right->sequence->items.end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  }
  if (a.as<Namespace*>()) return *a.as<Namespace*>() == *b.as<Namespace*>();
  if (const auto* loop = a.as<std::shared_ptr<Loop>>())
    return *loop == *b.as<std::shared_ptr<Loop>>();
  if (const auto* function = a.as<std::shared_ptr<const Function>>())
    return *function == *b.as<std::shared_ptr<const Function>>();
  return true;  // None and None, Undefined and Undefined
}

int order(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  for (const Value* side : {&a, &b}) {
    if (const auto* undefined = side->as<Undefined>()) throw Error("{}", *undefined->message);
  }
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.text() && b.text()) {
    budget.spend_bytes(std::min(a.text()->size(), b.text()->size()));
    return sign(a.text()->compare(*b.text()), 0);  // UTF-8 keeps the order of code points
  }
  const Items *left = a.indexed(), *right = b.indexed();
  if (left && right && left->kind == right->kind) {
    const auto &x = left->sequence->items, &y = right->sequence->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return order(x[i], y[i], budget);
    }
    return sign(x.size(), y.size());
  }
  throw Error("'{}' and '{}' have no order", type_name(a), type_name(b));
}

int64_t to_integer(const Value& value) {
  if (const bool* flag = value.as<bool>()) return *flag ? 1 : 0;
  if (const int64_t* integer = value.as<int64_t>()) return *integer;
  if (const auto* undefined = value.as<Undefined>()) throw Error("{}", *undefined->message);
  if (const auto* large = value.as<LargeInteger>())
    throw Error("the integer {} is too large to compute with", large->value);
  throw Error("'{}' object cannot be interpreted as an integer", type_name(value));
}

}  // namespace tailrace::chat::jinja
