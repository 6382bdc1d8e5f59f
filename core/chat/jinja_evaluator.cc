#include "core/chat/jinja_evaluator.h"

#include <algorithm>
#include <array>
#include <deque>

#include "core/chat/jinja_arguments.h"
#include "core/chat/jinja_filters.h"
#include "core/chat/jinja_methods.h"
#include "core/chat/jinja_operators.h"
#include "core/chat/jinja_tests.h"

namespace tailrace::chat::jinja {

// The variables of a loop's turn, a macro's call, a `with`. Names are views into the parsed
// template or the variables of the render.
struct Scope {
  Scope* parent = nullptr;
  std::unordered_map<std::string_view, Value> variables;
  // A macro was defined in it or below and may be called after its end.
  bool kept = false;
};

namespace {

using Kind = Expression::Kind;
enum class Flow { kNext, kBreak, kContinue };

// Expressions, statements and macros within each other: bounds the stack.
constexpr int kMaxDepth = 500;
// Jinja's sandbox has the same.
constexpr size_t kMaxRange = 100000;

constexpr std::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range",
                                           "strftime_now"};

class Evaluator {
 public:
  Evaluator(const Variables& variables, const std::optional<std::tm>& now)
      : variables_(variables), now_(now) {}

  std::string run(const Body& body) {
    try {
      execute(body);
    } catch (Error& error) {
      // Values and filters know no lines. The error gets that of the node which was evaluated last.
      if (error.line == 0) error.line = line_;
      throw;
    }
    return std::move(out_);
  }

 private:
  // --- scopes

  class InnerScope {
   public:
    InnerScope(Evaluator& evaluator, Scope* parent)
        : evaluator_(evaluator), outer_(evaluator.scope_), scope_(std::make_unique<Scope>()) {
      scope_->parent = parent;
      evaluator_.scope_ = scope_.get();
    }
    explicit InnerScope(Evaluator& evaluator) : InnerScope(evaluator, evaluator.scope_) {}
    ~InnerScope() {
      evaluator_.scope_ = outer_;
      // A macro holds a plain pointer to the scope that it was defined in and may outlive the block
      // (through a namespace), so such a scope lives until the end of the render.
      if (scope_->kept) evaluator_.kept_.push_back(std::move(scope_));
    }
    InnerScope(const InnerScope&) = delete;

   private:
    Evaluator& evaluator_;
    Scope* outer_;
    std::unique_ptr<Scope> scope_;
  };

  class Deeper {
   public:
    explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
      if (++evaluator_.depth_ > kMaxDepth)
        throw Error("macros and expressions within each other are deeper than {}", kMaxDepth);
    }
    ~Deeper() { --evaluator_.depth_; }
    Deeper(const Deeper&) = delete;

   private:
    Evaluator& evaluator_;
  };

  // Returns the text that `write` prints, and keeps it out of the output.
  // The output is swapped and not copied: a capture within a capture costs what it prints.
  template <class Write>
  std::string captured(Write write) {
    std::string outer = std::exchange(out_, {});
    try {
      write();
    } catch (...) {
      out_ = std::move(outer);
      throw;
    }
    return std::exchange(out_, std::move(outer));
  }

  Value lookup(const std::string& name) {
    for (const Scope* scope = scope_; scope; scope = scope->parent) {
      budget_.spend(1);
      const auto it = scope->variables.find(name);
      if (it != scope->variables.end()) return it->second;
    }
    // Variables of the render hide the functions: a template that is given `range` sees that value.
    if (const auto it = variables_.find(name); it != variables_.end()) return it->second;
    if (std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions)) {
      auto function = std::make_shared<Function>();
      function->name = name;
      return std::shared_ptr<const Function>(std::move(function));
    }
    return Value::undefined(fmt::format("'{}' is undefined", name));
  }

  void assign(const Expression& target, const Value& value) {
    if (target.kind == Kind::kName) {
      // A name is set in the innermost scope only: behind its loop it has the old value, as in
      // Jinja. A namespace is how a template carries a value out.
      scope_->variables[target.name] = value;
    } else if (target.kind == Kind::kAttribute) {
      const Value object = evaluate(*target.operands[0]);
      Namespace* const* names = object.as<Namespace*>();
      if (!names) throw Error("cannot assign attribute on non-namespace object");
      (*names)->members[target.name] = value;
    } else {
      const std::vector<Value> items = iterate(value, budget_);
      if (items.size() != target.operands.size())
        throw Error("{} values for {} names", items.size(), target.operands.size());
      for (size_t i = 0; i < items.size(); ++i) assign(*target.operands[i], items[i]);
    }
  }

  // --- statements

  Flow execute(const Body& body) {
    Deeper deeper(*this);
    for (const Statement& statement : body) {
      line_ = statement.line;
      budget_.spend(1);
      if (const Flow flow = execute(statement); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  void print(std::string_view text) {
    budget_.spend_bytes(text.size());
    out_ += text;
  }

  Flow execute(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        print(statement.name);
        break;
      case Statement::Kind::kPrint:
        print(to_text(evaluate(*statement.value), budget_));
        break;
      case Statement::Kind::kIf:
        for (const Statement::Branch& branch : statement.branches) {
          if (!branch.condition || truth(evaluate(*branch.condition))) return execute(branch.body);
        }
        break;
      case Statement::Kind::kFor:
        return execute_for(statement);
      case Statement::Kind::kSet:
        assign(*statement.target, evaluate(*statement.value));
        break;
      case Statement::Kind::kSetBlock:
        assign(*statement.target, filtered(*statement.value, statement.body));
        break;
      case Statement::Kind::kMacro:
        scope_->variables[statement.name] = closure(statement);
        break;
      case Statement::Kind::kCallBlock: {
        const Value caller = closure(statement);
        print(to_text(call(*statement.value, &caller), budget_));
        break;
      }
      case Statement::Kind::kFilterBlock: {
        const Value text = filtered(*statement.value, statement.body);
        if (!text.text()) throw Error("a filter block gives a {}, not a text", type_name(text));
        print(*text.text());
        break;
      }
      case Statement::Kind::kWith:
        return execute_with(statement);
      case Statement::Kind::kGeneration: {
        InnerScope scope(*this);
        execute(statement.body);
        break;
      }
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Value closure(const Statement& macro) {
    auto function = std::make_shared<Function>();
    function->name = macro.name;
    function->macro = &macro;
    function->scope = scope_;
    // The scopes around are found through `parent`, so all of them must live as long as the macro.
    for (Scope* scope = scope_; scope; scope = scope->parent) scope->kept = true;
    return std::shared_ptr<const Function>(std::move(function));
  }

  Value filtered(const Expression& filters, const Body& body) {
    Value text = captured([&] {
      InnerScope scope(*this);
      execute(body);
    });
    std::swap(piped_, text);
    // The filters of the block find its text in piped_. A filter block within their arguments would
    // find its own, so the outer text comes back behind it.
    Value result = evaluate(filters);
    std::swap(piped_, text);
    return result;
  }

  Flow execute_with(const Statement& statement) {
    std::vector<Value> values;
    // All values are evaluated outside of the new scope: with a=1, b=a the second does not see the
    // first.
    for (const auto& [_, value] : statement.assignments) values.push_back(evaluate(*value));
    InnerScope scope(*this);
    for (size_t i = 0; i < values.size(); ++i) assign(*statement.assignments[i].first, values[i]);
    return execute(statement.body);
  }

  Flow execute_for(const Statement& statement) {
    // A list of the items, since `loop.length` and `loop.revindex` need their number, which a
    // generator cannot tell.
    const Value all = Value::list(iterate(evaluate(*statement.value), budget_));
    auto loop = std::make_shared<Loop>();
    loop->items = all.as<Items>()->sequence;
    loop->depth0 = loop_depth_;
    if (statement.condition) {
      // An earlier turn may set what decides about a later item: each is looked at when its turn
      // comes, or when `loop.last` or `loop.length` asks.
      loop->items = std::make_shared<Sequence>();
      loop->items->nesting = all.nesting();
      loop->let_more_in = [&, outer = scope_, next = size_t{0}]() mutable {
        const std::vector<Value>& candidates = all.as<Items>()->sequence->items;
        while (next < candidates.size()) {
          const Value& item = candidates[next++];
          InnerScope scope(*this, outer);
          assign(*statement.target, item);
          if (!truth(evaluate(*statement.condition))) continue;
          loop->items->items.push_back(item);
          return true;
        }
        return false;
      };
    }
    // As Jinja has it: `else` is for loops of which no turn came to its end.
    bool none_completed = true;
    ++loop_depth_;
    for (; loop->reaches(loop->index0); ++loop->index0) {
      budget_.spend(1);
      InnerScope scope(*this);
      scope_->variables["loop"] = loop;
      assign(*statement.target, loop->items->items[loop->index0]);
      const Flow flow = execute(statement.body);
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNext) none_completed = false;
    }
    --loop_depth_;
    // The function above refers to locals of this call, and a namespace may have kept `loop`.
    if (statement.condition)
      loop->let_more_in = []() -> bool { throw Error("the loop that is asked is over"); };
    if (!none_completed || statement.otherwise.empty()) return Flow::kNext;
    InnerScope scope(*this);
    return execute(statement.otherwise);
  }

  // --- expressions

  Value evaluate(const Expression& node) {
    Deeper deeper(*this);
    budget_.spend(1);
    line_ = node.line;
    switch (node.kind) {
      case Kind::kConstant:
        return node.value;
      case Kind::kName:
        return lookup(node.name);
      case Kind::kPiped:
        return piped_;
      case Kind::kList:
        return Value::list(all(node, 0));
      case Kind::kTuple:
        return Value::tuple(all(node, 0));
      case Kind::kDict:
        return make_dict(node);
      case Kind::kAttribute:
        return attribute(evaluate(*node.operands[0]), node.name, budget_);
      case Kind::kSubscript: {
        const Value object = evaluate(*node.operands[0]);
        return subscript(object, evaluate(*node.operands[1]), budget_);
      }
      case Kind::kSlice:
        return make_slice(node);
      case Kind::kSpread:
        break;  // arguments() takes it apart
      case Kind::kCall:
        return call(node, nullptr);
      case Kind::kFilter:
        return apply(node);
      case Kind::kTest:
        return apply(node);
      case Kind::kNot:
        return !truth(evaluate(*node.operands[0]));
      case Kind::kNegative:
        return negative(evaluate(*node.operands[0]));
      case Kind::kPositive:
        return positive(evaluate(*node.operands[0]));
      case Kind::kAnd:
      case Kind::kOr: {
        Value left = evaluate(*node.operands[0]);
        // The value of an operand and not its truth, as in Python: (name or "user") is a text.
        return truth(left) == (node.kind == Kind::kAnd) ? evaluate(*node.operands[1]) : left;
      }
      case Kind::kCondition:
        return choose(node);
      case Kind::kBinary: {
        const Value left = evaluate(*node.operands[0]);
        return calculate(node.operators[0], left, evaluate(*node.operands[1]), budget_);
      }
      case Kind::kCompare:
        return compare_chain(node);
      case Kind::kConcat:
        return concatenated(node);
    }
    return Value();
  }

  std::vector<Value> all(const Expression& node, size_t first) {
    std::vector<Value> values;
    for (size_t i = first; i < node.operands.size(); ++i)
      values.push_back(evaluate(*node.operands[i]));
    return values;
  }

  Value make_dict(const Expression& node) {
    std::vector<std::pair<std::string, Value>> entries;
    for (size_t i = 0; i < node.operands.size(); i += 2) {
      const Value key = evaluate(*node.operands[i]);
      if (!key.text()) throw Error("keys of a dict must be strings, not '{}'", type_name(key));
      put(entries, *key.text(), evaluate(*node.operands[i + 1]));
    }
    return Value::dict(std::move(entries));
  }

  // A key that comes again keeps its first place.
  void put(std::vector<std::pair<std::string, Value>>& entries, const std::string& key,
           Value value) {
    // The search below is linear, so a dict of n keys spends about n^2 / 16 steps here.
    budget_.spend(1 + static_cast<int64_t>(entries.size() / 8 + key.size() / 16));
    const auto it = std::find_if(entries.begin(), entries.end(),
                                 [&](const auto& entry) { return entry.first == key; });
    if (it != entries.end()) {
      it->second = std::move(value);
    } else {
      entries.emplace_back(key, std::move(value));
    }
  }

  Value make_slice(const Expression& node) {
    std::array<Value, 4> parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (node.operands[i]) parts[i] = evaluate(*node.operands[i]);
    }
    return slice(parts[0], parts[1], parts[2], parts[3], budget_);
  }

  Value choose(const Expression& node) {
    if (truth(evaluate(*node.operands[0]))) return evaluate(*node.operands[1]);
    if (node.operands[2]) return evaluate(*node.operands[2]);
    return Value::undefined("the inline if-expression evaluated to false and has no else");
  }

  Value compare_chain(const Expression& node) {
    Value left = evaluate(*node.operands[0]);
    for (size_t i = 0; i < node.operators.size(); ++i) {
      Value right = evaluate(*node.operands[i + 1]);
      if (!compare(node.operators[i], left, right, budget_)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value concatenated(const Expression& node) {
    std::string out;
    for (const Value& value : all(node, 0)) out += to_text(value, budget_);
    budget_.spend_bytes(out.size());
    return out;
  }

  // A function that takes a text may copy it.
  void spend_on(const Value& argument) {
    if (argument.text()) budget_.spend_bytes(argument.text()->size());
  }

  Arguments arguments(const Expression& node) {
    Arguments out;
    for (size_t i = 1; i < node.operands.size(); ++i) {
      const bool spread = node.operands[i]->kind == Kind::kSpread;
      Value value = evaluate(spread ? *node.operands[i]->operands[0] : *node.operands[i]);
      if (!spread) {
        out.positional.push_back(std::move(value));
      } else {
        for (Value& item : iterate(value, budget_)) out.positional.push_back(std::move(item));
      }
    }
    for (const auto& [name, node_of_value] : node.named) {
      const Value value = evaluate(*node_of_value);
      if (!name.empty()) {
        out.named.emplace_back(name, value);
        continue;
      }
      if (!value.dict()) throw Error("'**' wants a dict, not '{}'", type_name(value));
      budget_.spend(value.dict()->cost);
      out.named.insert(out.named.end(), value.dict()->entries.begin(), value.dict()->entries.end());
    }
    for (const Value& value : out.positional) spend_on(value);
    for (const auto& [_, value] : out.named) spend_on(value);
    line_ = node.line;  // of what follows
    return out;
  }

  Value apply(const Expression& node) {
    const Value subject = evaluate(*node.operands[0]);
    const Arguments given = arguments(node);
    if (node.kind == Kind::kTest) return apply_test(node.name, subject, given, budget_);
    return apply_filter(node.name, subject, given, budget_);
  }

  // --- calls

  Value call(const Expression& node, const Value* caller) {
    const Value callee = evaluate(*node.operands[0]);
    const Arguments given = arguments(node);
    if (const auto* undefined = callee.as<Undefined>()) throw Error("{}", *undefined->message);
    const auto* function = callee.as<std::shared_ptr<const Function>>();
    if (!function) throw Error("'{}' object is not callable", type_name(callee));
    if ((*function)->macro) return call_macro(**function, given, caller);
    if (caller) throw Error("'call' wants a macro");
    if (const Value* self = (*function)->self())
      return call_method(*self, (*function)->name, given, budget_);
    return call_function((*function)->name, given);
  }

  Value call_macro(const Function& function, const Arguments& given, const Value* caller) {
    const Statement& macro = *function.macro;
    const std::vector<Statement::Parameter>& parameters = macro.parameters;
    if (caller && !macro.names_caller) throw Error("macro '{}' has no use of caller", macro.name);
    if (given.positional.size() > parameters.size())
      throw Error("macro '{}' takes not more than {} argument(s)", macro.name, parameters.size());
    std::vector<const Value*> values(parameters.size());
    for (size_t i = 0; i < given.positional.size(); ++i) values[i] = &given.positional[i];
    for (const auto& [name, value] : given.named) {
      const auto it = std::find_if(parameters.begin(), parameters.end(),
                                   [&, &name = name](const auto& p) { return p.name == name; });
      if (it == parameters.end() || values[it - parameters.begin()])
        throw Error("macro '{}' takes no keyword argument '{}'", macro.name, name);
      values[it - parameters.begin()] = &value;
    }
    InnerScope scope(*this, function.scope);
    scope_->variables["caller"] = caller ? *caller : Value::undefined("No caller defined");
    // More arguments than parameters are refused above.
    scope_->variables["varargs"] = Value::tuple({});
    scope_->variables["kwargs"] = Value::dict({});
    // loop.depth counts the loops of one macro; those around its call are not seen inside of it.
    const int64_t loop_depth = std::exchange(loop_depth_, 0);
    std::string text = captured([&] {
      for (size_t i = 0; i < parameters.size(); ++i)
        scope_->variables[parameters[i].name] = argument(parameters[i], values[i]);
      execute(macro.body);
    });
    loop_depth_ = loop_depth;
    return text;
  }

  Value argument(const Statement::Parameter& parameter, const Value* given) {
    if (given) return *given;
    if (parameter.fallback) return evaluate(*parameter.fallback);
    return Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
  }

  Value call_function(std::string_view name, const Arguments& given) {
    if (name == "range") return make_range(given);
    if (name == "strftime_now") return tell_time(given);
    if (name == "raise_exception") {
      const BoundArguments bound(name, given, {"message"}, 1);
      throw Error("{}", to_text(bound.value(0), budget_));
    }
    // Both take the members of a dict and named values.
    if (given.positional.size() > 1) throw Error("{}() takes one dict and named values", name);
    std::vector<std::pair<std::string, Value>> entries;
    if (!given.positional.empty()) {
      if (!given.positional[0].dict()) throw Error("{}() takes a dict and named values", name);
      budget_.spend(given.positional[0].dict()->cost);
      entries = given.positional[0].dict()->entries;
    }
    for (const auto& [key, value] : given.named) put(entries, key, value);
    if (name == "dict") return Value::dict(std::move(entries));
    Namespace& names = namespaces_.emplace_back();
    for (auto& [key, value] : entries) names.members[key] = std::move(value);
    return &names;
  }

  Value make_range(const Arguments& given) {
    const BoundArguments bound("range", given, {"start", "stop", "step"}, 1);
    const bool only_stop = bound.find(1) == nullptr;
    int64_t at = only_stop ? 0 : to_integer(*bound.find(0));
    const int64_t stop = to_integer(*bound.find(only_stop ? 0 : 1));
    const int64_t step = bound.find(2) ? to_integer(*bound.find(2)) : 1;
    if (step == 0) throw Error("range() arg 3 must not be zero");
    std::vector<Value> items;
    while (step > 0 ? at < stop : at > stop) {
      budget_.spend(1);
      if (items.size() == kMaxRange) throw Error("range() of more than {} items", kMaxRange);
      items.emplace_back(at);
      // Past 64 bits no further item can be in the range, and a signed overflow is undefined
      // behaviour.
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    return Value::view(std::move(items));
  }

  // Formats a time by the directives that Python and the C library agree on.
  Value tell_time(const Arguments& given) {
    const BoundArguments bound("strftime_now", given, {"format"}, 1);
    const std::string format = bound.text(0, "");
    if (!now_) throw Error("the template asks for today's date, and chat.date gives none");
    std::string out;
    for (size_t i = 0; i < format.size(); ++i) {
      if (format[i] != '%') {
        out += format[i];
        continue;
      }
      std::string one = "%";
      if (i + 1 < format.size() && format[i + 1] == '-') one += format[++i];
      const char c = i + 1 < format.size() ? format[++i] : '\0';
      if (c == '\0' ||
          std::string_view("aAbBcdDeFHIjmMpRSTuUwWxXyY%").find(c) == std::string_view::npos)
        throw Error("strftime_now has no such part: '{}'", format);
      one += c;
      char buffer[64];
      out.append(buffer, std::strftime(buffer, sizeof buffer, one.c_str(), &*now_));
    }
    budget_.spend_bytes(out.size());
    return out;
  }

  const Variables& variables_;
  const std::optional<std::tm>& now_;
  Budget budget_;
  std::deque<Namespace> namespaces_;  // live as long as the render: they may hold each other
  std::vector<std::unique_ptr<Scope>> kept_;  // so may macros and scopes
  Scope root_;
  Scope* scope_ = &root_;
  Value piped_;
  std::string out_;
  int line_ = 0;
  int depth_ = 0;
  int64_t loop_depth_ = 0;
};

}  // namespace

std::string render(const Body& body, const Variables& variables,
                   const std::optional<std::tm>& now) {
  return Evaluator(variables, now).run(body);
}

}  // namespace tailrace::chat::jinja
