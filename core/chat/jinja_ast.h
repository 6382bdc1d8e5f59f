// The syntax tree of a parsed template. Immutable after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/chat/jinja_value.h"

namespace tailrace::chat::jinja {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    kConstant,
    kName,
    kPiped,      // the text of a `filter` or `set` block, on its way into the filters
    kList,       // operands: items
    kTuple,      // operands: items
    kDict,       // operands: key, value, key, value, ...
    kAttribute,  // operands: object; name
    kSubscript,  // operands: object, index
    kSlice,      // operands: object, begin, end, step; null: left out
    kCall,       // operands: callee, arguments; named
    kSpread,     // operands: items; an argument that stands for many: f(*items)
    kFilter,     // operands: subject, arguments; named; name
    kTest,       // the same
    kNot,
    kNegative,
    kPositive,
    kAnd,
    kOr,
    kCondition,  // operands: condition, then, otherwise; the last may be null
    kBinary,     // operands: left, right; operators[0]
    kCompare,    // operands: a, b, c, ...; operators between them
    kConcat,     // operands joined by ~
  };

  Kind kind = Kind::kConstant;
  int line = 0;
  int height = 1;  // 1: no operands
  std::string name;
  Value value;
  std::vector<ExpressionPtr> operands;
  // Arguments by name; one without a name is a dict of them: f(**names).
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<Operator> operators;
};

using Body = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,         // name: the text
    kPrint,        // value
    kIf,           // branches
    kFor,          // target, value, condition (null: none), body, otherwise
    kSet,          // target, value
    kSetBlock,     // target, value (filters of a kPiped), body
    kMacro,        // name, parameters, body
    kCallBlock,    // value: the call; parameters, body
    kFilterBlock,  // value (filters of a kPiped), body
    kWith,         // assignments, body
    kGeneration,   // body: what the assistant said, which is plain text to a renderer
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;  // null: else
    Body body;
  };
  struct Parameter {
    std::string name;
    ExpressionPtr fallback;  // null: none
  };

  Kind kind = Kind::kText;
  int line = 0;
  std::string name;
  bool names_caller = false;  // a macro that no `call` block may use without
  // The target of an assignment: a kName, a kTuple of targets, or a kAttribute (a namespace).
  ExpressionPtr target;
  ExpressionPtr value, condition;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;
  Body body, otherwise;
};

}  // namespace tailrace::chat::jinja
