#include "core/chat/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/chat/jinja_methods.h"
#include "core/chat/jinja_string.h"

namespace tailrace::chat::jinja {
namespace {

bool is_integer(const Value& value) { return value.as<bool>() || value.as<int64_t>(); }

double real(const Value& value) {
  return value.as<double>() ? *value.as<double>() : static_cast<double>(to_integer(value));
}

[[noreturn]] void too_large() { throw Error("a number has more than 64 bits"); }

void refuse_undefined(const Value& value) {
  if (const auto* undefined = value.as<Undefined>()) throw Error("{}", *undefined->message);
}

std::string_view symbol(Operator op) {
  static constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSymbols[static_cast<size_t>(op)];
}

int64_t floor_divided(int64_t a, int64_t b) {
  if (b == 0) throw Error("division by zero");
  // The one quotient that does not fit; x86 traps on it.
  if (a == INT64_MIN && b == -1) too_large();
  const int64_t quotient = a / b;
  // Python rounds down, C++ towards zero.
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  // The powers of these bases never outgrow 64 bits, however large the exponent.
  if (base >= -1 && base <= 1) return exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base;
  // At most 63 turns: the bases that are left have then outgrown 64 bits.
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) too_large();
  }
  return result;
}

Value calculate_integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return result;
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return result;
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return result;
    case Operator::kDivide:
      if (b == 0) throw Error("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Operator::kFloorDivide:
      return floor_divided(a, b);
    case Operator::kModulo:
      if (b == 0) throw Error("division by zero");
      // INT64_MIN % -1 traps as its division does.
      if (b == -1) return int64_t{0};
      result = a % b;
      return result != 0 && (result < 0) != (b < 0) ? result + b : result;
    default:
      if (b < 0) {
        if (a == 0) throw Error("0 to a negative power");
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      return integer_power(a, b);
  }
}

// Python's float modulo: the sign of the divisor.
double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double float_floor_divided(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  // CPython's float_floor_div(): (a - rest) / b may be off by a rounding, so the nearest integer is
  // taken.
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value calculate_floats(Operator op, double a, double b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) throw Error("division by zero");
  switch (op) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSubtract:
      return a - b;
    case Operator::kMultiply:
      return a * b;
    case Operator::kDivide:
      return a / b;
    case Operator::kFloorDivide:
      return float_floor_divided(a, b);
    case Operator::kModulo:
      return float_modulo(a, b);
    default: {
      if (a == 0 && b < 0) throw Error("0 to a negative power");
      if (a < 0 && b != std::floor(b)) throw Error("a complex number");
      const double result = std::pow(a, b);
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) throw Error("a number too large");
      return result;
    }
  }
}

std::optional<Value> joined(const Value& a, const Value& b, Budget& budget) {
  if (a.text() && b.text()) {
    if (a.as<Text>()->safe || b.as<Text>()->safe)
      throw Error("'safe' text can be printed, not joined with '+'");
    budget.spend_bytes(a.text()->size() + b.text()->size());
    return Value(*a.text() + *b.text());
  }
  const Items *left = a.indexed(), *right = b.indexed();
  if (!left || !right || left->kind != right->kind) return std::nullopt;
  std::vector<Value> items = iterate(a, budget);
  for (Value& item : iterate(b, budget)) items.push_back(std::move(item));
  return Value::list(std::move(items), left->kind);
}

std::optional<Value> repeated(const Value& a, const Value& count, Budget& budget) {
  const Items* items = a.indexed();
  if (!is_integer(count) || !(a.text() || items)) return std::nullopt;
  const int64_t times = std::max<int64_t>(to_integer(count), 0);
  // The cost of one repetition times their number is spent before anything is made.
  budget.spend(std::min(times, Budget::kMaxSteps + 1));
  const int64_t size = a.text() ? static_cast<int64_t>(a.text()->size() / 16 + 1)
                                : static_cast<int64_t>(items->sequence->items.size());
  if (size > 0 && times > Budget::kMaxSteps / size) budget.spend(Budget::kMaxSteps + 1);
  budget.spend(size * times);
  if (a.text()) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += *a.text();
    return Value(std::move(out));
  }
  std::vector<Value> out;
  for (int64_t i = 0; i < times; ++i)
    out.insert(out.end(), items->sequence->items.begin(), items->sequence->items.end());
  return Value::list(std::move(out), items->kind);
}

Value missing_member(const Value& value, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", object_name(value), name));
}

Value missing_item(const Value& value, const Value& index, Budget& budget) {
  return Value::undefined(
      fmt::format("{} has no element {}", object_name(value), to_repr(index, budget)));
}

Value loop_member(const Value& value, std::string_view name) {
  const Loop& loop = **value.as<std::shared_ptr<Loop>>();
  auto size = [&] {
    while (loop.let_more_in && loop.let_more_in()) {
    }
    return static_cast<int64_t>(loop.items->items.size());
  };
  if (name == "index0") return loop.index0;
  if (name == "index") return loop.index0 + 1;
  if (name == "revindex0") return size() - loop.index0 - 1;
  if (name == "revindex") return size() - loop.index0;
  if (name == "first") return loop.index0 == 0;
  // A loop with a condition looks for one more item here and not at all of them: looking further
  // would evaluate the condition too early.
  if (name == "last") return !loop.reaches(loop.index0 + 1);
  if (name == "length") return size();
  if (name == "depth") return loop.depth0 + 1;
  if (name == "depth0") return loop.depth0;
  if (name == "previtem")
    return loop.index0 > 0 ? loop.items->items[loop.index0 - 1]
                           : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return loop.reaches(loop.index0 + 1) ? loop.items->items[loop.index0 + 1]
                                         : Value::undefined("there is no next item");
  return missing_member(value, name);
}

// The member that Python finds by getattr(); nullopt: there is none.
std::optional<Value> member(const Value& value, std::string_view name) {
  if (has_method(value, name)) {
    auto method = std::make_shared<Function>();
    method->name = name;
    method->has_self = true;
    method->bound = value;
    return Value(std::shared_ptr<const Function>(std::move(method)));
  }
  if (Namespace* const* names = value.as<Namespace*>()) {
    const auto it = (*names)->members.find(std::string(name));
    if (it != (*names)->members.end()) return it->second;
  }
  if (value.as<std::shared_ptr<Loop>>()) return loop_member(value, name);
  return std::nullopt;
}

std::optional<Value> key(const Value& value, std::string_view name, Budget& budget) {
  const Dict* dict = value.dict();
  if (!dict) return std::nullopt;
  budget.spend(1 + static_cast<int64_t>(dict->entries.size() / 8));
  const Value* found = dict->find(name);
  return found ? std::optional<Value>(*found) : std::nullopt;
}

// Where a slice begins, how far it steps, and how many items it takes: Python's slice.indices().
struct SliceRange {
  int64_t begin = 0, step = 1, count = 0;
};

SliceRange slice_range(const Value& begin, const Value& end, const Value& step, int64_t size) {
  SliceRange range;
  if (!step.is_none()) range.step = to_integer(step);
  if (range.step == 0) throw Error("slice step cannot be zero");
  if (range.step == INT64_MIN) too_large();
  const bool up = range.step > 0;
  auto bound = [&](const Value& value, int64_t fallback) {
    if (value.is_none()) return fallback;
    int64_t at = to_integer(value);
    if (at < 0) at += size;
    return std::clamp<int64_t>(at, up ? 0 : -1, up ? size : size - 1);
  };
  range.begin = bound(begin, up ? 0 : size - 1);
  const int64_t stop = bound(end, up ? size : -1);
  const int64_t distance = up ? stop - range.begin : range.begin - stop;
  const int64_t stride = up ? range.step : -range.step;
  range.count = distance > 0 ? (distance - 1) / stride + 1 : 0;
  return range;
}

}  // namespace

Value calculate(Operator op, const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  refuse_undefined(a);
  refuse_undefined(b);
  if (is_integer(a) && is_integer(b)) return calculate_integers(op, to_integer(a), to_integer(b));
  if (a.is_number() && b.is_number()) return calculate_floats(op, real(a), real(b));
  std::optional<Value> result;
  if (op == Operator::kAdd) result = joined(a, b, budget);
  if (op == Operator::kMultiply) result = repeated(a, b, budget);
  if (op == Operator::kMultiply && !result) result = repeated(b, a, budget);
  if (result) return *std::move(result);
  if (op == Operator::kModulo && a.text()) throw Error("formatting with '%' is not supported");
  throw Error("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a),
              type_name(b));
}

bool compare(Operator op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case Operator::kEqual:
      return equal(a, b, budget);
    case Operator::kNotEqual:
      return !equal(a, b, budget);
    case Operator::kIn:
      return contains(b, a, budget);
    case Operator::kNotIn:
      return !contains(b, a, budget);
    default:
      break;
  }
  const int sign = order(a, b, budget);
  if (sign == 2) return false;  // with a NaN
  if (op == Operator::kLess) return sign < 0;
  if (op == Operator::kLessEqual) return sign <= 0;
  return op == Operator::kGreater ? sign > 0 : sign >= 0;
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const std::string* text = container.text()) {
    if (!item.text())
      throw Error("'in <string>' requires string as left operand, not {}", type_name(item));
    budget.spend_bytes(text->size());
    budget.spend_search(text->size(), item.text()->size());
    return text->find(*item.text()) != std::string::npos;
  }
  if (item.text()) budget.spend_bytes(item.text()->size());
  if (container.dict() && (item.dict() || item.items(Items::Kind::kList)))
    throw Error("unhashable type: '{}'", type_name(item));
  if (container.dict()) return item.text() && key(container, *item.text(), budget).has_value();
  if (const Items* indexed = container.indexed()) {
    const std::vector<Value>& items = indexed->sequence->items;
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& other) { return equal(other, item, budget); });
  }
  for (const Value& other : iterate(container, budget)) {
    if (equal(other, item, budget)) return true;
  }
  return false;
}

Value negative(const Value& value) {
  refuse_undefined(value);
  if (const double* number = value.as<double>()) return -*number;
  if (!is_integer(value)) throw Error("bad operand type for unary -: '{}'", type_name(value));
  if (to_integer(value) == INT64_MIN) too_large();
  return -to_integer(value);
}

Value positive(const Value& value) {
  refuse_undefined(value);
  if (value.as<double>()) return value;
  if (!is_integer(value)) throw Error("bad operand type for unary +: '{}'", type_name(value));
  return to_integer(value);
}

// Jinja tries the member first for a.b and the key first for a['b']: a dict with the key "items"
// gives its method for d.items, and the value for d['items'].
Value attribute(const Value& value, std::string_view name, Budget& budget) {
  refuse_undefined(value);
  budget.spend_bytes(name.size());
  if (auto found = member(value, name)) return *std::move(found);
  if (auto found = key(value, name, budget)) return *std::move(found);
  return missing_member(value, name);
}

Value subscript(const Value& value, const Value& index, Budget& budget) {
  refuse_undefined(value);
  if (const std::string* name = index.text()) {
    budget.spend_bytes(name->size());
    if (auto found = key(value, *name, budget)) return *std::move(found);
    if (auto found = member(value, *name)) return *std::move(found);
    return missing_member(value, *name);
  }
  if (value.items(Items::Kind::kView)) throw Error("range() and views have no index here: | list");
  const Items* items = value.indexed();
  // A wrong index is undefined and no error, so that "is defined" can ask for it.
  if (!(value.text() || items) || !is_integer(index)) return missing_item(value, index, budget);
  if (value.text()) budget.spend_bytes(value.text()->size());
  const int64_t size = length(value);
  int64_t at = to_integer(index);
  if (at < -size || at >= size) return missing_item(value, index, budget);
  if (at < 0) at += size;
  if (items) return items->sequence->items[at];
  return slice(value, at, at + 1, Value(), budget);
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step,
            Budget& budget) {
  refuse_undefined(value);
  const Items* items = value.indexed();
  if (!value.text() && !items) throw Error("'{}' object cannot be sliced", type_name(value));
  const SliceRange range = slice_range(begin, end, step, length(value));
  budget.spend(1 + range.count);
  auto picked = [&](const auto& from, auto& to) {
    for (int64_t i = 0; i < range.count; ++i) to.push_back(from[range.begin + i * range.step]);
  };
  if (items) {
    std::vector<Value> out;
    picked(items->sequence->items, out);
    return Value::list(std::move(out), items->kind);
  }
  budget.spend_bytes(value.text()->size());
  std::u32string out;
  picked(to_code_points(*value.text()), out);
  return from_code_points(out);
}

}  // namespace tailrace::chat::jinja
