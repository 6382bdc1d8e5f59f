#include "core/chat/jinja_expressions.h"

#include <optional>

#include "core/chat/jinja_filters.h"
#include "core/chat/jinja_tests.h"

namespace tailrace::chat::jinja {

ExpressionPtr ExpressionParser::parse_target(std::string_view end_name, bool namespaces) {
  ExpressionPtr first = parse_one_target(namespaces);
  if (!at_operator(",")) return first;
  const int line = first->line;
  ExpressionPtr tuple = node(Kind::kTuple, line, std::move(first));
  while (skip_operator(",")) {
    // A comma may stand behind the last target, as behind the last item of Python's tuples, so each
    // thing that can follow a target ends the list here.
    if (current().kind == Token::Kind::kBlockEnd || at_operator("=") || at_operator(")") ||
        (!end_name.empty() && at_name(end_name)))
      break;
    add(*tuple, parse_one_target(namespaces));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::parse_one_target(bool namespaces) {
  Deeper deeper(*this);
  const int line = current().line;
  if (skip_operator("(")) {
    ExpressionPtr inner = parse_target({}, namespaces);
    expect_operator(")");
    return inner;
  }
  ExpressionPtr target = node(Kind::kName, line);
  target->name = expect_name();
  // The parser reads these names as constants, so a variable of such a name could never be read
  // again.
  for (std::string_view taken : {"true", "false", "none", "True", "False", "None"}) {
    if (target->name == taken) fail("can't assign to '{}'", taken);
  }
  // Only {% set %} may write to a member. The evaluator then refuses every object but a namespace,
  // which is known when the template runs and not before.
  if (!namespaces || !skip_operator(".")) return target;
  ExpressionPtr member = node(Kind::kAttribute, line, std::move(target));
  member->name = expect_name();
  return member;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().kind == Token::Kind::kPrintEnd || current().kind == Token::Kind::kBlockEnd ||
         at_operator(")") || (!end_name.empty() && at_name(end_name));
}

ExpressionPtr ExpressionParser::parse_tuple(std::string_view end_name, bool conditions,
                                            bool in_brackets) {
  const int line = current().line;
  if (at_tuple_end(end_name)) {
    if (!in_brackets) fail("expected an expression, got '{}'", shown());
    return node(Kind::kTuple, line);
  }
  // Behind "for x in" an "if" belongs to the loop and filters its items, so the items themselves
  // are read without the inline "a if b".
  auto one = [&] { return conditions ? parse_expression() : parse_or(); };
  ExpressionPtr first = one();
  if (!at_operator(",")) return first;
  ExpressionPtr tuple = node(Kind::kTuple, line, std::move(first));
  while (skip_operator(",") && !at_tuple_end(end_name)) add(*tuple, one());
  return tuple;
}

ExpressionPtr ExpressionParser::parse_expression() {
  Deeper deeper(*this);
  ExpressionPtr value = parse_or();
  while (at_name("if")) {
    const int line = take().line;
    ExpressionPtr condition = parse_or();
    // The `else` is optional in Jinja, unlike in Python: without it a false condition gives an
    // undefined value, which prints nothing.
    ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    value =
        node(Kind::kCondition, line, std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  Deeper deeper(*this);
  ExpressionPtr left = parse_and();
  while (at_name("or")) {
    const int line = take().line;
    left = node(Kind::kOr, line, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (at_name("and")) {
    const int line = take().line;
    left = node(Kind::kAnd, line, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  Deeper deeper(*this);
  const int line = current().line;
  return skip_name("not") ? node(Kind::kNot, line, parse_not()) : parse_compare();
}

// One node holds a whole chain: a < b < c compares b with both neighbours and evaluates it once.
ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual},
  };
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::optional<Operator> op;
    for (const auto& [text, meaning] : kOperators) {
      if (!op && skip_operator(text)) op = meaning;
    }
    if (!op && skip_name("in")) op = Operator::kIn;
    if (!op && at_name("not") && is(ahead(), Token::Kind::kName, "in")) {
      take();
      take();
      op = Operator::kNotIn;
    }
    if (!op) return chain ? std::move(chain) : std::move(first);
    if (!chain) chain = node(Kind::kCompare, line, std::move(first));
    chain->operators.push_back(*op);
    add(*chain, parse_sum());
  }
}

ExpressionPtr ExpressionParser::binary(Operator op, int line, ExpressionPtr left,
                                       ExpressionPtr right) const {
  ExpressionPtr made = node(Kind::kBinary, line, std::move(left), std::move(right));
  made->operators.push_back(op);
  return made;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const Token& token = take();
    left = binary(token.text == "+" ? Operator::kAdd : Operator::kSubtract, token.line,
                  std::move(left), parse_concat());
  }
  return left;
}

// Jinja's "~" binds tighter than "+" and "-", so that 1 ~ 2 + 3 adds to a text and is an error
// there too.
ExpressionPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExpressionPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExpressionPtr all = node(Kind::kConcat, line, std::move(first));
  while (skip_operator("~")) add(*all, parse_product());
  return all;
}

ExpressionPtr ExpressionParser::parse_product() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"*", Operator::kMultiply},
      {"/", Operator::kDivide},
      {"//", Operator::kFloorDivide},
      {"%", Operator::kModulo},
  };
  ExpressionPtr left = parse_power();
  while (true) {
    const int line = current().line;
    std::optional<Operator> op;
    for (const auto& [text, meaning] : kOperators) {
      if (!op && skip_operator(text)) op = meaning;
    }
    if (!op) return left;
    left = binary(*op, line, std::move(left), parse_power());
  }
}

// Jinja groups "**" from the left and lets a sign bind tighter, both unlike Python: 2**3**2 is 64,
// and -2**2 is 4.
ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (at_operator("**")) {
    const int line = take().line;
    left = binary(Operator::kPower, line, std::move(left), parse_unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  Deeper deeper(*this);
  const int line = current().line;
  ExpressionPtr value;
  if (skip_operator("-")) {
    // Filters wait for the sign: -1|abs is abs(-1).
    value = node(Kind::kNegative, line, parse_unary(false));
  } else if (skip_operator("+")) {
    value = node(Kind::kPositive, line, parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.kind) {
    case Token::Kind::kName:
      return parse_name();
    case Token::Kind::kInteger:
      return constant(take().integer, line);
    case Token::Kind::kFloat:
      return constant(take().real, line);
    case Token::Kind::kString: {
      std::string text;
      // Strings side by side are one, as in Python.
      while (current().kind == Token::Kind::kString) text += take().text;
      return constant(std::move(text), line);
    }
    default:
      break;
  }
  if (skip_operator("(")) {
    ExpressionPtr inner = parse_tuple({}, /*conditions=*/true, /*in_brackets=*/true);
    expect_operator(")");
    return inner;
  }
  if (skip_operator("[")) {
    ExpressionPtr list = node(Kind::kList, line);
    while (!at_operator("]")) {
      if (!list->operands.empty()) expect_operator(",");
      if (!at_operator("]")) add(*list, parse_expression());
    }
    take();
    return list;
  }
  if (skip_operator("{")) return parse_dict(line);
  fail("unexpected '{}'", shown());
}

ExpressionPtr ExpressionParser::parse_name() {
  const Token& token = take();
  // Jinja takes the names of Python and its own for these constants.
  if (token.text == "true" || token.text == "True") return constant(true, token.line);
  if (token.text == "false" || token.text == "False") return constant(false, token.line);
  if (token.text == "none" || token.text == "None") return constant(Value(), token.line);
  ExpressionPtr name = node(Kind::kName, token.line);
  name->name = token.text;
  // A macro that names `caller` may be the target of a {% call %}. Jinja decides so from the source
  // of the macro too, whether or not that place is reached.
  names_caller_ |= token.text == "caller";
  return name;
}

ExpressionPtr ExpressionParser::parse_dict(int line) {
  ExpressionPtr dict = node(Kind::kDict, line);
  while (!at_operator("}")) {
    if (!dict->operands.empty()) expect_operator(",");
    if (at_operator("}")) break;
    add(*dict, parse_expression());
    expect_operator(":");
    add(*dict, parse_expression());
  }
  take();
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    const int line = current().line;
    if (skip_operator(".")) {
      // A number behind a dot is an index: messages.0 is messages[0].
      if (current().kind == Token::Kind::kInteger) {
        value = node(Kind::kSubscript, line, std::move(value), constant(take().integer, line));
      } else {
        value = node(Kind::kAttribute, line, std::move(value));
        value->name = expect_name();
      }
    } else if (skip_operator("[")) {
      value = parse_subscript(std::move(value), line);
    } else if (at_operator("(")) {
      value = node(Kind::kCall, line, std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object, int line) {
  ExpressionPtr parts[3];
  if (!at_operator(":")) {
    parts[0] = parse_expression();
    if (skip_operator("]"))
      return node(Kind::kSubscript, line, std::move(object), std::move(parts[0]));
  }
  expect_operator(":");
  if (!at_operator(":") && !at_operator("]")) parts[1] = parse_expression();
  if (skip_operator(":") && !at_operator("]")) parts[2] = parse_expression();
  expect_operator("]");
  return node(Kind::kSlice, line, std::move(object), std::move(parts[0]), std::move(parts[1]),
              std::move(parts[2]));
}

void ExpressionParser::name(Expression& call, std::string key, ExpressionPtr value) const {
  // Named arguments count for the height as add() counts operands: rendering and freeing walk down
  // both.
  call.height = std::max(call.height, value->height + 1);
  call.named.emplace_back(std::move(key), std::move(value));
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_operator("(");
  while (!at_operator(")")) {
    const int line = current().line;
    if (skip_operator("*")) {
      // A spread stays one node until the call, when it is known how many items it has.
      add(call, node(Kind::kSpread, line, parse_expression()));
    } else if (skip_operator("**")) {
      // The empty name marks a dict of arguments, which no written argument can have for its name.
      name(call, {}, parse_expression());
    } else if (current().kind == Token::Kind::kName && is(ahead(), Token::Kind::kOperator, "=")) {
      std::string key = take().text;
      take();
      name(call, std::move(key), parse_expression());
    } else {
      if (!call.named.empty()) fail("a plain argument behind a named one");
      add(call, parse_expression());
    }
    if (!at_operator(")")) expect_operator(",");
  }
  take();
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value) {
  while (true) {
    const int line = current().line;
    if (at_operator("|")) {
      value = parse_filter(std::move(value));
    } else if (skip_name("is")) {
      value = parse_test(std::move(value), line);
    } else if (at_operator("(")) {
      value = node(Kind::kCall, line, std::move(value));
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr value) {
  expect_operator("|");
  return parse_named_filter(std::move(value));
}

ExpressionPtr ExpressionParser::parse_named_filter(ExpressionPtr value) {
  ExpressionPtr filter = node(Kind::kFilter, current().line, std::move(value));
  filter->name = expect_name();
  check_filter(filter->name);
  if (at_operator("(")) parse_arguments(*filter);
  check_names_in_arguments(*filter);
  return filter;
}

void ExpressionParser::check_names_in_arguments(const Expression& filter) const {
  // A template with an unknown name is refused when it is read, at its line, and not in the middle
  // of a run at the first conversation that reaches that place.
  const bool attribute = filter.name == "selectattr" || filter.name == "rejectattr";
  const size_t at = attribute ? 2 : 1;  // 0 is the subject
  if (filter.operands.size() <= at || !filter.operands[at]->value.text()) return;
  const std::string& name = *filter.operands[at]->value.text();
  if (filter.name == "map") check_filter(name);
  if (attribute || filter.name == "select" || filter.name == "reject") check_test(name);
}

void ExpressionParser::check_filter(std::string_view name) const {
  if (!has_filter(name)) fail("no filter '{}'; there are: {}", name, filter_names());
}

void ExpressionParser::check_test(std::string_view name) const {
  if (!has_test(name)) fail("no test '{}'; there are: {}", name, test_names());
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value, int line) {
  const bool negated = skip_name("not");
  ExpressionPtr test = node(Kind::kTest, line, std::move(value));
  if (current().kind != Token::Kind::kName) fail("expected a test, got '{}'", shown());
  check_test(current().text);
  test->name = take().text;
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (begins_argument()) {
    if (at_name("is")) fail("tests cannot be chained with 'is'");
    // The argument without brackets is one primary: neither operators nor filters belong to it.
    add(*test, parse_postfix(parse_primary()));
  }
  return negated ? node(Kind::kNot, line, std::move(test)) : std::move(test);
}

bool ExpressionParser::begins_argument() const {
  switch (current().kind) {
    case Token::Kind::kName:
      // These names go on with the expression around the test: "x is defined and y".
      return !at_name("else") && !at_name("or") && !at_name("and");
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return true;
    default:
      return at_operator("[") || at_operator("{");
  }
}

}  // namespace tailrace::chat::jinja
