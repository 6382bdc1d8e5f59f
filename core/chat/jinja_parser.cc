#include "core/chat/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/chat/jinja_expressions.h"

namespace tailrace::chat::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() { return parse_body({}); }

 private:
  Statement& append(Body& body, Statement::Kind kind) const {
    Statement& statement = body.emplace_back();
    statement.kind = kind;
    statement.line = current().line;
    return statement;
  }

  // Up to a block tag that begins with one of `ends`, which is left as the current token; without
  // ends, up to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    Deeper deeper(*this);
    Body body;
    while (current().kind != Token::Kind::kEnd) {
      if (current().kind == Token::Kind::kText) {
        Statement& text = append(body, Statement::Kind::kText);
        text.name = take().text;
      } else if (current().kind == Token::Kind::kPrintBegin) {
        take();
        Statement& print = append(body, Statement::Kind::kPrint);
        print.value = parse_tuple({});
        expect(Token::Kind::kPrintEnd, "}}");
      } else {
        take();
        if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return at_name(end); }))
          return body;
        body.push_back(parse_statement());
        expect(Token::Kind::kBlockEnd, "%}");
      }
    }
    if (ends.size() > 0) fail("expected {{% {} %}}, and the template ends", *std::prev(ends.end()));
    return body;
  }

  // A body with its end tag, up to that tag's "%}".
  Body parse_rest(std::string_view end) {
    expect(Token::Kind::kBlockEnd, "%}");
    Body body = parse_body({end});
    take();
    return body;
  }

  // The same, where `break` and `continue` have no loop to act on.
  Body parse_closed(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_rest(end);
    loops_ = loops;
    return body;
  }

  Statement parse_statement() {
    Statement statement;
    statement.line = current().line;
    if (current().kind != Token::Kind::kName) fail("expected a statement, got '{}'", shown());
    using Parse = void (Parser::*)(Statement&);
    static constexpr std::pair<std::string_view, Parse> kStatements[] = {
        {"break", &Parser::parse_break},
        {"call", &Parser::parse_call_block},
        {"continue", &Parser::parse_continue},
        {"filter", &Parser::parse_filter_block},
        {"for", &Parser::parse_for},
        {"generation", &Parser::parse_generation},
        {"if", &Parser::parse_if},
        {"macro", &Parser::parse_macro},
        {"set", &Parser::parse_set},
        {"with", &Parser::parse_with},
    };
    std::string names;
    for (const auto& [name, parse] : kStatements) {
      if (skip_name(name)) {
        (this->*parse)(statement);
        return statement;
      }
      names += fmt::format("{}, ", name);
    }
    fail("no statement '{}'; there are: {}raw", shown(), names);
  }

  void parse_break(Statement& out) {
    if (loops_ == 0) fail("'break' outside of a loop");
    out.kind = Statement::Kind::kBreak;
  }

  void parse_continue(Statement& out) {
    if (loops_ == 0) fail("'continue' outside of a loop");
    out.kind = Statement::Kind::kContinue;
  }

  void parse_generation(Statement& out) {
    out.kind = Statement::Kind::kGeneration;
    out.body = parse_closed("endgeneration");
  }

  void parse_if(Statement& out) {
    out.kind = Statement::Kind::kIf;
    while (true) {
      // Without the inline "a if b", which Jinja does not read here either.
      ExpressionPtr condition = parse_tuple({}, /*conditions=*/false);
      expect(Token::Kind::kBlockEnd, "%}");
      Body body = parse_body({"elif", "else", "endif"});
      out.branches.push_back({std::move(condition), std::move(body)});
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        out.branches.push_back({nullptr, parse_rest("endif")});
      } else {
        take();
      }
      return;
    }
  }

  void parse_for(Statement& out) {
    out.kind = Statement::Kind::kFor;
    out.target = parse_target("in");
    if (!skip_name("in")) fail("expected 'in', got '{}'", shown());
    // The name `recursive` may follow the items, and it must not be read as one of them behind a
    // comma.
    out.value = parse_tuple("recursive", /*conditions=*/false);
    if (skip_name("if")) out.condition = parse_expression();
    if (at_name("recursive")) fail("recursive loops are not supported");
    expect(Token::Kind::kBlockEnd, "%}");
    ++loops_;
    out.body = parse_body({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      out.otherwise = parse_rest("endfor");
    } else {
      take();
    }
  }

  void parse_set(Statement& out) {
    out.target = parse_target({}, /*namespaces=*/true);
    if (skip_operator("=")) {
      out.kind = Statement::Kind::kSet;
      out.value = parse_tuple({});
      return;
    }
    out.kind = Statement::Kind::kSetBlock;
    out.value = node(Kind::kPiped, current().line);
    while (at_operator("|")) out.value = parse_filter(std::move(out.value));
    out.body = parse_closed("endset");
  }

  void parse_with(Statement& out) {
    out.kind = Statement::Kind::kWith;
    while (current().kind != Token::Kind::kBlockEnd) {
      if (!out.assignments.empty()) expect_operator(",");
      ExpressionPtr target = parse_target({});
      expect_operator("=");
      out.assignments.emplace_back(std::move(target), parse_expression());
    }
    out.body = parse_rest("endwith");
  }

  void parse_filter_block(Statement& out) {
    out.kind = Statement::Kind::kFilterBlock;
    out.value = parse_named_filter(node(Kind::kPiped, current().line));
    while (at_operator("|")) out.value = parse_filter(std::move(out.value));
    out.body = parse_closed("endfilter");
  }

  void parse_macro(Statement& out) {
    out.kind = Statement::Kind::kMacro;
    out.name = expect_name();
    if (!at_operator("(")) fail("expected '(', got '{}'", shown());
    // A macro within another: each learns of its own `caller`, and the outer one counts the inner's
    // use as its own.
    const bool outer = std::exchange(names_caller_, false);
    parse_parameters(out);
    out.body = parse_closed("endmacro");
    out.names_caller = names_caller_;
    names_caller_ |= outer;
  }

  void parse_call_block(Statement& out) {
    out.kind = Statement::Kind::kCallBlock;
    out.name = "caller";
    if (at_operator("(")) parse_parameters(out);
    out.value = parse_expression();
    if (out.value->kind != Kind::kCall) fail("expected a call behind 'call'");
    out.body = parse_closed("endcall");
  }

  void parse_parameters(Statement& out) {
    expect_operator("(");
    while (!at_operator(")")) {
      if (!out.parameters.empty()) expect_operator(",");
      Statement::Parameter parameter{expect_name(), nullptr};
      if (skip_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!out.parameters.empty() && out.parameters.back().fallback) {
        fail("a parameter without a default behind one with a default");
      }
      out.parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
  }

  int loops_ = 0;  // whose body is being parsed
};

}  // namespace

Body parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace tailrace::chat::jinja
