// The expressions of a template, from tokens; jinja_parser.h adds the statements around them.
//
// Thread: one parse's.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/chat/jinja_ast.h"
#include "core/chat/jinja_lexer.h"

namespace tailrace::chat::jinja {

// The depth of expressions in brackets, operators in a row and statements within each other: bounds
// the recursions of parsing, rendering and freeing.
inline constexpr int kMaxParseDepth = 200;

// Every parse_ function takes the tokens of what it is named after and throws Error, with its line,
// when they are something else.
class ExpressionParser {
 public:
  using Kind = Expression::Kind;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  class Deeper {
   public:
    explicit Deeper(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxParseDepth) parser_.fail("nested deeper than {}", kMaxParseDepth);
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // --- tokens

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  static bool is(const Token& token, Token::Kind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool at_name(std::string_view name) const { return is(current(), Token::Kind::kName, name); }
  bool at_operator(std::string_view op) const { return is(current(), Token::Kind::kOperator, op); }
  bool skip_name(std::string_view name) { return at_name(name) && (take(), true); }
  bool skip_operator(std::string_view op) { return at_operator(op) && (take(), true); }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    Error error("{}", fmt::format(format, std::forward<Args>(args)...));
    error.line = current().line;
    throw error;
  }

  std::string shown() const {
    switch (current().kind) {
      case Token::Kind::kEnd:
        return "the end of the template";
      case Token::Kind::kBlockEnd:
        return "%}";
      case Token::Kind::kPrintEnd:
        return "}}";
      default:
        return current().text.substr(0, 60);
    }
  }

  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) fail("expected '{}', got '{}'", op, shown());
  }
  std::string expect_name() {
    if (current().kind != Token::Kind::kName) fail("expected a name, got '{}'", shown());
    return take().text;
  }
  void expect(Token::Kind kind, std::string_view text) {
    if (current().kind != kind) fail("expected '{}', got '{}'", text, shown());
    take();
  }

  // --- nodes

  ExpressionPtr node(Kind kind, int line) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = line;
    return made;
  }

  void add(Expression& parent, ExpressionPtr operand) const {
    if (operand) {
      parent.height = std::max(parent.height, operand->height + 1);
      if (parent.height > kMaxParseDepth)
        fail("an expression of more than {} levels", kMaxParseDepth);
    }
    parent.operands.push_back(std::move(operand));
  }

  template <class... Operands>
  ExpressionPtr node(Kind kind, int line, Operands... operands) const {
    ExpressionPtr made = node(kind, line);
    (add(*made, std::move(operands)), ...);
    return made;
  }

  ExpressionPtr constant(Value value, int line) const {
    ExpressionPtr made = node(Kind::kConstant, line);
    made->value = std::move(value);
    return made;
  }

  // --- targets of assignments

  ExpressionPtr parse_target(std::string_view end_name, bool namespaces = false);
  ExpressionPtr parse_one_target(bool namespaces);

  // --- expressions, from the loosest to the tightest

  bool at_tuple_end(std::string_view end_name) const;
  ExpressionPtr parse_tuple(std::string_view end_name, bool conditions = true,
                            bool in_brackets = false);
  ExpressionPtr parse_expression();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr binary(Operator op, int line, ExpressionPtr left, ExpressionPtr right) const;
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_dict(int line);
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr object, int line);
  void name(Expression& call, std::string key, ExpressionPtr value) const;
  void parse_arguments(Expression& call);
  ExpressionPtr parse_filters(ExpressionPtr value);
  ExpressionPtr parse_filter(ExpressionPtr value);
  ExpressionPtr parse_named_filter(ExpressionPtr value);
  // map("upper") and select("string") name another filter or test.
  void check_names_in_arguments(const Expression& filter) const;
  void check_filter(std::string_view name) const;
  void check_test(std::string_view name) const;
  ExpressionPtr parse_test(ExpressionPtr value, int line);
  // "x is divisibleby 3" needs no brackets.
  bool begins_argument() const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  bool names_caller_ = false;  // the macro that is being parsed
};

}  // namespace tailrace::chat::jinja
