#include "core/chat/jinja_lexer.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/chat/jinja_string.h"
#include "core/chat/jinja_value.h"
#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

// The longer ones first: the first that fits is taken.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

// Names are copied and compared while a template is rendered, for one step each.
constexpr size_t kMaxNameBytes = 200;

bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// "\r\n" and "\r" become "\n"; one newline at the very end goes.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_outside();
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }

  [[noreturn]] void fail(std::string_view message) const {
    Error error("{}", message);
    error.line = line_;
    throw error;
  }

  void advance(size_t bytes) {
    const std::string_view passed = rest().substr(0, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += bytes;
  }

  Token& add(Token::Kind kind, std::string_view text = {}) {
    tokens_.push_back(Token{.kind = kind, .line = line_, .text = std::string(text)});
    return tokens_.back();
  }

  void skip_white_space() {
    const std::string_view text = rest();
    advance(text.size() - strip(text, std::nullopt, Side::kLeft).size());
  }

  // Text up to the next tag or the end.
  void lex_outside() {
    size_t begin = source_.find('{', at_);
    // A brace alone is text: only {{, {% and {# begin a tag.
    while (begin != std::string::npos && begin + 1 < source_.size() &&
           std::string_view("{%#").find(source_[begin + 1]) == std::string_view::npos)
      begin = source_.find('{', begin + 1);
    if (begin == std::string::npos || begin + 1 == source_.size()) begin = source_.size();
    std::string_view text = rest().substr(0, begin - at_);
    if (begin < source_.size()) text = stripped_before_tag(text, begin);
    if (!text.empty()) add(Token::Kind::kText, text);
    advance(begin - at_);
    if (begin < source_.size()) lex_tag();
  }

  // The part of the text before the tag at `tag` that stays.
  std::string_view stripped_before_tag(std::string_view text, size_t tag) const {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (sign == '-') return strip(text, std::nullopt, Side::kRight);
    // lstrip_blocks is for blocks and comments; in front of {{ blanks stay, since a line may begin
    // with the value.
    if (sign == '+' || source_[tag + 1] == '{') return text;
    const size_t newline = text.rfind('\n');
    // Text without a newline begins a line only where the tag before it swallowed one, or the
    // template begins.
    if (newline == std::string_view::npos && !line_starting_) return text;
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    return strip(text.substr(line), std::nullopt, Side::kBoth).empty() ? text.substr(0, line)
                                                                       : text;
  }

  void lex_tag() {
    const char kind = source_[at_ + 1];
    if (kind == '%') {
      if (const size_t end = raw_begin_end()) return lex_raw(end);
    }
    const int line = line_;
    advance(2);
    if (next_is("-") || next_is("+")) advance(1);
    if (kind == '#') return lex_comment(line);
    const bool block = kind == '%';
    add(block ? Token::Kind::kBlockBegin : Token::Kind::kPrintBegin).line = line;
    while (!lex_tag_end(block)) lex_inside(line);
  }

  // Behind "{% raw %}" at at_; 0: it is another tag.
  size_t raw_begin_end() const {
    std::string_view text = rest().substr(2);
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    text = strip(text, std::nullopt, Side::kLeft);
    if (!text.starts_with("raw")) return 0;
    text = strip(text.substr(3), std::nullopt, Side::kLeft);
    if (text.starts_with("-%}"))
      return source_.size() - strip(text.substr(3), std::nullopt, Side::kLeft).size();
    return text.starts_with("%}") ? source_.size() - text.size() + 2 : 0;
  }

  void lex_raw(size_t begin) {
    // Jinja remembers the last character of the opening tag.
    line_starting_ = source_[begin - 1] == '\n';
    const int line = line_;
    advance(begin - at_);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      std::string_view inner = std::string_view(source_).substr(tag + 2);
      if (inner.starts_with('-') || inner.starts_with('+')) inner.remove_prefix(1);
      inner = strip(inner, std::nullopt, Side::kLeft);
      if (!inner.starts_with("endraw")) continue;
      inner = strip(inner.substr(6), std::nullopt, Side::kLeft);
      const size_t sign = inner.starts_with('-') || inner.starts_with('+') ? 1 : 0;
      if (!inner.substr(sign).starts_with("%}")) continue;
      const std::string_view text = stripped_before_tag(rest().substr(0, tag - at_), tag);
      if (!text.empty()) add(Token::Kind::kText, text);
      advance(source_.size() - inner.size() - at_);
      lex_end_mark("%}", /*block=*/true);
      return;
    }
    line_ = line;
    fail("Missing end of raw directive");
  }

  void lex_comment(int line) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) {
      line_ = line;
      fail("Missing end of comment tag");
    }
    // The sign belongs to the end mark, which decides what of the text behind it goes.
    const bool signed_end = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - at_ - (signed_end ? 1 : 0));
    lex_end_mark("#}", /*block=*/true);
  }

  // "-%}" takes white space along, "%}" one newline, "+%}" and "}}" nothing.
  bool lex_end_mark(std::string_view mark, bool block) {
    const size_t before = at_;
    if (next_is(fmt::format("-{}", mark))) {
      advance(1 + mark.size());
      skip_white_space();
    } else if (next_is(mark)) {
      advance(mark.size());
      if (block && next_is("\n")) advance(1);
    } else if (block && next_is(fmt::format("+{}", mark))) {
      advance(1 + mark.size());
    } else {
      return false;
    }
    line_starting_ = at_ > before && source_[at_ - 1] == '\n';
    return true;
  }

  bool lex_tag_end(bool block) {
    skip_white_space();
    // Inside of brackets "}}" closes two dicts, and not the tag.
    if (!open_.empty()) return false;
    const int line = line_;
    if (!lex_end_mark(block ? "%}" : "}}", block)) return false;
    add(block ? Token::Kind::kBlockEnd : Token::Kind::kPrintEnd).line = line;
    return true;
  }

  void lex_inside(int tag_line) {
    if (at_ == source_.size()) {
      line_ = tag_line;
      fail("the tag does not end");
    }
    const char c = source_[at_];
    if (is_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    if (starts_name(c)) {
      size_t end = at_;
      while (end < source_.size() && (starts_name(source_[end]) || is_digit(source_[end]))) ++end;
      if (end - at_ > kMaxNameBytes) fail(fmt::format("a name of {} bytes", end - at_));
      add(Token::Kind::kName, rest().substr(0, end - at_));
      return advance(end - at_);
    }
    for (std::string_view op : kOperators) {
      if (!next_is(op)) continue;
      balance(op);
      add(Token::Kind::kOperator, op);
      return advance(op.size());
    }
    size_t end = at_;
    text::next_code_point(source_, end);
    fail(fmt::format("unexpected character '{}'", source_.substr(at_, end - at_)));
  }

  void balance(std::string_view op) {
    const char c = op[0];
    if (c == '(' || c == '[' || c == '{') open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open_.empty()) fail(fmt::format("unexpected '{}'", c));
    if (open_.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open_.back()));
    open_.pop_back();
  }

  // Digits with single underscores between them; how many bytes from `at`.
  size_t digits(size_t at) const {
    const size_t begin = at;
    while (at < source_.size() &&
           (is_digit(source_[at]) || (source_[at] == '_' && at > begin && source_[at - 1] != '_' &&
                                      at + 1 < source_.size() && is_digit(source_[at + 1]))))
      ++at;
    return at - begin;
  }

  void lex_number() {
    // Jinja reads 0x, 0o and 0b too. They are refused: a number that is read as another would be
    // worse.
    if (next_is("0") && at_ + 1 < source_.size() && starts_name(source_[at_ + 1]) &&
        source_[at_ + 1] != 'e' && source_[at_ + 1] != 'E')
      fail("numbers are decimal here");
    size_t end = at_ + digits(at_);
    bool real = false;
    // Behind a dot stands an index: a.0.1
    const bool index = !tokens_.empty() && tokens_.back().kind == Token::Kind::kOperator &&
                       tokens_.back().text == ".";
    if (!index && end < source_.size() && source_[end] == '.' && digits(end + 1) > 0) {
      end += 1 + digits(end + 1);
      real = true;
    }
    if (!index && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
      if (const size_t exponent = digits(end + 1 + sign)) {
        end += 1 + sign + exponent;
        real = true;
      }
    }
    std::string text(rest().substr(0, end - at_));
    std::erase(text, '_');
    Token& token = add(real ? Token::Kind::kFloat : Token::Kind::kInteger, text);
    const char* last = token.text.data() + token.text.size();
    const auto parsed = real ? std::from_chars(token.text.data(), last, token.real)
                             : std::from_chars(token.text.data(), last, token.integer);
    if (parsed.ec != std::errc() || parsed.ptr != last)
      fail(fmt::format("the number {} is too large", text));
    // Jinja reads zeros alone as a number, and refuses 007.
    if (!real && text.size() > 1 && text[0] == '0' && token.integer != 0)
      fail(fmt::format("unexpected number {}", text));
    advance(end - at_);
  }

  void lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("the string does not end");
    const std::string_view inner = rest().substr(1, end - at_ - 1);
    add(Token::Kind::kString, unescaped(inner));
    advance(end + 1 - at_);
  }

  // Python's "unicode-escape".
  std::string unescaped(std::string_view inner) const {
    static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (size_t i = 0; i < inner.size(); ++i) {
      if (inner[i] != '\\') {
        out += inner[i];
        continue;
      }
      const char c = inner[++i];
      const size_t simple = kFrom.find(c);
      if (simple != std::string_view::npos) {
        out += kTo[simple];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_escape(out, inner.substr(i + 1, digits), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < inner.size() && inner[i + digits] >= '0' &&
               inner[i + digits] <= '7')
          ++digits;
        append_escape(out, inner.substr(i, digits), digits, 8);
        i += digits - 1;
      } else if (c == 'N') {
        fail("\\N{...} in a string is not supported");
      } else if (c & 0x80) {
        fail("a backslash before a character beyond ASCII is not supported");
      } else if (c != '\n') {
        // Python keeps the backslash of an escape that it does not know.
        (out += '\\') += c;
      }
    }
    return out;
  }

  void append_escape(std::string& out, std::string_view digits, size_t wanted, int base) const {
    uint32_t c = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), c, base);
    if (digits.size() != wanted || parsed.ec != std::errc() ||
        parsed.ptr != digits.data() + digits.size() || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
      fail("an escape in a string is no character");
    text::append_utf8(out, c);
  }

  const std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended at the end of a line
  std::string open_;           // the brackets that the current tag must still close
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(with_plain_newlines(source)).run();
}

}  // namespace tailrace::chat::jinja
