// The values that a template computes with: Python's values, as far as chat templates use them.
//
// A value is immutable, but for a namespace; so is what Jinja's immutable sandbox allows.
// Everything that may cost more than a constant takes a Budget: templates come from outside.
//
// Thread: one render's; constants of a parsed template are shared by all renders and only read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/chat/jinja_budget.h"
#include "core/chat/jinja_error.h"

namespace tailrace::chat::jinja {

class Value;
struct Statement;  // jinja_ast.h
struct Scope;      // jinja_evaluator.cc

// Lists and dicts within each other; also bounds the recursions over them.
inline constexpr int kMaxNesting = 200;

struct Sequence {
  std::vector<Value> items;
  int nesting = 1;
};

// Keeps the order in which keys came. Keys are strings.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  int nesting = 1;
  int64_t cost = 0;  // steps of going through all keys

  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::unordered_map<std::string, Value> members;
};

struct Loop {
  bool reaches(int64_t index) const;

  std::shared_ptr<Sequence> items;
  // For a loop with an `if`: adds the next item that passes; false: there is none.
  std::function<bool()> let_more_in;
  int64_t index0 = 0;
  int64_t depth0 = 0;  // loops around it, in the same macro
};

struct Undefined {
  std::shared_ptr<const std::string> message;  // what to say when it is used; never null
};
struct None {};
// An integer from 2^63 on, as data may hold one (an id, the bound of a schema). It is printed and
// compared; who computes with it is refused.
struct LargeInteger {
  uint64_t value;
};
struct Text {
  std::shared_ptr<const std::string> text;
  // Went through `safe`. Jinja's '+' and its methods then escape the HTML of what they join it
  // with, which no chat template wants: they refuse it.
  bool safe = false;
};
struct Items {
  // A view is what range() and the methods of a dict give: it has a length and no index.
  enum class Kind { kList, kTuple, kView, kGenerator };
  std::shared_ptr<Sequence> sequence;  // of a generator: what is left of it
  Kind kind = Kind::kList;
};
struct Function;

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}                                         // NOLINT
  Value(int64_t value) : data_(value) {}                                      // NOLINT
  Value(double value) : data_(value) {}                                       // NOLINT
  Value(LargeInteger value) : data_(value) {}                                 // NOLINT
  Value(std::string text)                                                     // NOLINT
      : data_(Text{std::make_shared<const std::string>(std::move(text))}) {}  // NOLINT
  Value(const char*) = delete;                                                // would become a bool
  Value(Namespace* names) : data_(names) {}                                   // NOLINT
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}               // NOLINT
  Value(std::shared_ptr<const Function> function) : data_(std::move(function)) {}  // NOLINT

  static Value undefined(std::string message);
  static Value safe(const Value& text);
  // Throw Error when they are nested too deeply.
  static Value list(std::vector<Value> items, Items::Kind kind = Items::Kind::kList);
  static Value tuple(std::vector<Value> items) {
    return list(std::move(items), Items::Kind::kTuple);
  }
  static Value view(std::vector<Value> items) { return list(std::move(items), Items::Kind::kView); }
  static Value generator(std::vector<Value> items) {
    return list(std::move(items), Items::Kind::kGenerator);
  }
  static Value dict(std::vector<std::pair<std::string, Value>> entries);  // of different keys

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const { return as<bool>() || as<int64_t>() || as<double>(); }
  const std::string* text() const { return as<Text>() ? as<Text>()->text.get() : nullptr; }
  const Dict* dict() const;
  const Items* items(Items::Kind kind) const;
  const Items* indexed() const;  // of a list or a tuple
  // The nesting of lists, dicts, loops and methods, which all hold other values; 0: of the rest.
  int nesting() const;

 private:
  std::variant<None, Undefined, bool, int64_t, LargeInteger, double, Text, Items,
               std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<Loop>,
               std::shared_ptr<const Function>>
      data_;
};

// range() and its kin, a method of a value, or a macro.
struct Function {
  std::string name;
  const Value* self() const { return has_self ? &bound : nullptr; }

  bool has_self = false;
  Value bound;
  const Statement* macro = nullptr;  // a macro, or the body of a call block
  Scope* scope = nullptr;            // where the macro was defined
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

std::string_view type_name(const Value& value);  // Python's: "str", "NoneType"
// As Jinja says it of undefined members: "'dict object'" or "None".
std::string object_name(const Value& value);

bool truth(const Value& value);
// str() and repr(); a repr of text in scripts that Unicode has not assigned here may differ.
std::string to_text(const Value& value, Budget& budget);
std::string to_repr(const Value& value, Budget& budget);
std::string to_text(double value);  // 1.0, 1e-05, inf

// Characters of a text, keys of a dict. A generator is empty afterwards. Throws Error for what
// Python cannot iterate over.
std::vector<Value> iterate(const Value& value, Budget& budget);
bool is_iterable(const Value& value);
int64_t length(const Value& value);  // len()

bool equal(const Value& a, const Value& b, Budget& budget);
// -1, 0 or 1; 2 with a NaN. Throws Error for what Python does not order.
int order(const Value& a, const Value& b, Budget& budget);

// As an argument of range() or an index: an int or a bool; else throws Error.
int64_t to_integer(const Value& value);

}  // namespace tailrace::chat::jinja
