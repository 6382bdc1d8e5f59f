#include "reward/verifiers/latex_tokens.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "reward/verifiers/math_words.h"

namespace tailrace {

namespace {

using Token = LatexToken;
using TokenKind = LatexToken::Kind;

// Each \text{} and \frac{} reads its argument by a call of its own; this bounds the stack for any
// text of a policy.
constexpr int kMaxNesting = 40;

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~'; }

template <size_t N>
bool one_of(std::string_view text, const std::array<std::string_view, N>& list) {
  return std::ranges::find(list, text) != list.end();
}

// Commands that change the look and not the meaning.
constexpr std::array<std::string_view, 25> kLook = {
    "left", "right", "big",          "Big",       "bigg",   "Bigg", "bigl",  "bigr",   "Bigl",
    "Bigr", "biggl", "biggr",        "Biggl",     "Biggr",  "quad", "qquad", "limits", "boxed",
    "fbox", "hline", "displaystyle", "textstyle", "middle", "bf",   "rm"};
// Commands whose argument is text, or a letter of another shape.
constexpr std::array<std::string_view, 11> kText = {"text",   "textrm", "textbf",      "textit",
                                                    "textup", "mbox",   "hbox",        "mathrm",
                                                    "mathbf", "mathit", "operatorname"};
constexpr std::array<std::string_view, 23> kFunctions = {
    "sqrt",   "sin",    "cos",   "tan",  "cot",  "sec",  "csc", "arcsin",
    "arccos", "arctan", "sinh",  "cosh", "tanh", "ln",   "log", "lg",
    "exp",    "frac",   "binom", "asin", "acos", "atan", "cbrt"};
constexpr std::array<std::string_view, 45> kLetters = {
    "alpha", "beta",     "gamma",   "delta", "epsilon",   "varepsilon", "zeta",   "eta",
    "theta", "vartheta", "iota",    "kappa", "lambda",    "mu",         "nu",     "xi",
    "pi",    "rho",      "varrho",  "sigma", "tau",       "upsilon",    "phi",    "varphi",
    "chi",   "psi",      "omega",   "Gamma", "Delta",     "Theta",      "Lambda", "Xi",
    "Pi",    "Sigma",    "Upsilon", "Phi",   "Psi",       "Omega",      "infty",  "ell",
    "hbar",  "aleph",    "Re",      "Im",    "varnothing"};
// Short words and units that would else be products of letters.
constexpr std::array<std::string_view, 10> kShortWords = {"yes", "no",  "true", "odd", "all",
                                                          "not", "any", "the",  "per", "of"};
constexpr std::array<std::string_view, 22> kUnits = {
    "cm", "km", "mm", "kg",  "mg", "ml", "mL",  "mph", "hr",  "hrs", "min",
    "ft", "lb", "oz", "lbs", "in", "mi", "sec", "kmh", "USD", "EUR", "dB"};

struct Spelling {
  std::string_view from, to;
};
constexpr std::array<Spelling, 28> kSigns = {{{"cdot", "*"},
                                              {"colon", ":"},
                                              {"prime", "'"},
                                              {"times", "*"},
                                              {"ast", "*"},
                                              {"div", "/"},
                                              {"le", "<="},
                                              {"leq", "<="},
                                              {"leqslant", "<="},
                                              {"ge", ">="},
                                              {"geq", ">="},
                                              {"geqslant", ">="},
                                              {"lt", "<"},
                                              {"gt", ">"},
                                              {"ne", "!="},
                                              {"neq", "!="},
                                              {"approx", "\\approx"},
                                              {"lbrace", "\\{"},
                                              {"rbrace", "\\}"},
                                              {"lbrack", "["},
                                              {"rbrack", "]"},
                                              {"vert", "|"},
                                              {"lvert", "|"},
                                              {"rvert", "|"},
                                              {"lfloor", "\\lfloor"},
                                              {"rfloor", "\\rfloor"},
                                              {"lceil", "\\lceil"},
                                              {"rceil", "\\rceil"}}};
constexpr Spelling kMultipliers[] = {{"dozen", "12"},           {"hundred", "100"},
                                     {"thousand", "1000"},      {"million", "1000000"},
                                     {"billion", "1000000000"}, {"trillion", "1000000000000"},
                                     {"lakh", "100000"},        {"crore", "10000000"}};
// Signs of Unicode in the spelling of LaTeX; an empty one is left out.
constexpr std::array<Spelling, 32> kUnicode = {{{"−", "-"},
                                                {"–", "-"},
                                                {"×", "*"},
                                                {"·", "*"},
                                                {"⋅", "*"},
                                                {"÷", "/"},
                                                {"π", "\\pi "},
                                                {"√", "\\sqrt "},
                                                {"∞", "\\infty "},
                                                {"≤", "<="},
                                                {"≥", ">="},
                                                {"≠", "!="},
                                                {"≈", "\\approx "},
                                                {"∪", "\\cup "},
                                                {"±", "\\pm "},
                                                {"∈", "\\in "},
                                                {"θ", "\\theta "},
                                                {"α", "\\alpha "},
                                                {"β", "\\beta "},
                                                {"λ", "\\lambda "},
                                                {"²", "^2"},
                                                {"³", "^3"},
                                                {"½", "\\frac{1}{2}"},
                                                {"¼", "\\frac{1}{4}"},
                                                {"¾", "\\frac{3}{4}"},
                                                {"°", "\\circ "},
                                                {"€", ""},
                                                {"£", ""},
                                                {"∠", "\\angle "},
                                                {"△", "\\triangle "},
                                                {"∶", ":"},
                                                {"∅", "\\varnothing "}}};

class Lexer {
 public:
  Lexer(std::vector<Token>& tokens, int nesting, bool upright)
      : tokens_(tokens), nesting_(nesting), upright_(upright) {}

  // False: nested too deep.
  bool read(std::string_view text) {
    if (nesting_ > kMaxNesting) return false;
    text_ = text;
    for (at_ = 0; at_ < text_.size();) {
      const char c = text_[at_];
      if (is_space(c) || c == '$' || c == '`')
        ++at_;
      else if (c == '\\') {
        if (!command()) return false;
      } else if (is_ascii_digit(c) || (c == '.' && digit_at(at_ + 1)))
        number();
      else if (is_ascii_letter(c))
        letters();
      else if (static_cast<unsigned char>(c) >= 0x80) {
        if (!unicode()) return false;
      } else
        sign();
    }
    return true;
  }

 private:
  void push(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .upright = upright_});
  }
  bool digit_at(size_t at) const { return at < text_.size() && is_ascii_digit(text_[at]); }
  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }
  bool nested(std::string_view text, bool upright) {
    return Lexer(tokens_, nesting_ + 1, upright).read(text);
  }
  bool group(std::string_view text) {
    push(TokenKind::kSign, "{");
    if (!nested(text, upright_)) return false;
    push(TokenKind::kSign, "}");
    return true;
  }

  // The argument of a command: a group without its braces, a command, or one character.
  std::string_view argument() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    const size_t begin = at_;
    if (at_ == text_.size()) return {};
    if (text_[at_] == '{') {
      int depth = 0;
      for (; at_ < text_.size(); ++at_) {
        depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
        if (depth == 0) return text_.substr(begin + 1, at_++ - begin - 1);
      }
      return text_.substr(begin + 1);
    }
    if (text_[at_++] == '\\')
      while (at_ < text_.size() && is_ascii_letter(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // A degree sign is no exponent: takes back the `^` or `^{` before it.
  void degree() {
    if (!tokens_.empty() && tokens_.back().is("^")) {
      tokens_.pop_back();
    } else if (tokens_.size() > 1 && tokens_.back().is("{") &&
               tokens_[tokens_.size() - 2].is("^")) {
      tokens_.resize(tokens_.size() - 2);
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (starts("}")) ++at_;
    }
    push(TokenKind::kSign, "°");
  }

  bool command() {
    const size_t begin = ++at_;
    while (at_ < text_.size() && is_ascii_letter(text_[at_])) ++at_;
    const std::string name(text_.substr(begin, at_ - begin));
    if (name.empty()) {
      control_sign();
      return true;
    }
    if (one_of(name, kLook)) {
      // \right. closes nothing.
      if ((name == "left" || name == "right") && starts(".")) ++at_;
      return true;
    }
    if (one_of(name, kText)) return nested(argument(), name != "mathbf" && name != "mathit");
    if (name == "emptyset") {
      push(TokenKind::kLetter, "\\varnothing");
      return true;
    }
    if (name == "circ" || name == "degree") {
      degree();
      return true;
    }
    if (name == "frac" || name == "dfrac" || name == "tfrac" || name == "cfrac" ||
        name == "binom" || name == "dbinom") {
      push(TokenKind::kName, name.ends_with("binom") ? "\\binom" : "\\frac");
      return group(argument()) && group(argument());
    }
    if (name == "sqrt") return root();
    if (name == "begin" || name == "end") {
      std::string what(argument());
      if (what == "array" && name == "begin") argument();  // the columns
      if (what.ends_with("matrix") || what == "array") what = "matrix";
      push(TokenKind::kName, "\\" + name + " " + what);
      return true;
    }
    for (const Spelling& spelling : kSigns) {
      if (name != spelling.from) continue;
      push(TokenKind::kSign, std::string(spelling.to));
      return true;
    }
    if (name == "pm" || name == "mp" || name == "cup" || name == "cap" || name == "in")
      push(TokenKind::kSign, "\\" + name);
    else
      push(one_of(name, kLetters) ? TokenKind::kLetter : TokenKind::kName, "\\" + name);
    return true;
  }

  bool root() {
    push(TokenKind::kName, "\\sqrt");
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    if (starts("[")) {
      const size_t close = text_.find(']', at_);
      if (close == std::string_view::npos) return false;
      push(TokenKind::kSign, "[");
      if (!nested(text_.substr(at_ + 1, close - at_ - 1), upright_)) return false;
      push(TokenKind::kSign, "]");
      at_ = close + 1;
    }
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    // Plain text: "√12" and "√(12)" are written with the sign of Unicode.
    if (plain_root_ && digit_at(at_)) {
      number();
      return true;
    }
    if (starts("(")) return true;
    return group(argument());
  }

  // After a backslash: spacing, a bracket of a formula, or an escaped sign.
  void control_sign() {
    if (at_ == text_.size()) return;
    const char c = text_[at_++];
    if (c == '{' || c == '}') {
      brackets_ += c == '{' ? 1 : -1;
      push(TokenKind::kSign, std::string("\\") + c);
    }
    if (c == '\\') push(TokenKind::kSign, "\\\\");
    if (c == '%' || c == '#' || c == '&' || c == '_') push(TokenKind::kSign, std::string(1, c));
    if (c == '|') push(TokenKind::kSign, "|");
  }

  // How many bytes of a mark that is typeset between the digits of a number stand here.
  size_t typeset_mark() const {
    for (const std::string_view mark :
         {",\\!", "{,}", "{\\,}", "\\,", "\\!", "\\;", "\\:", "\\ ", "~"}) {
      if (!starts(mark)) continue;
      // A blank behind the name of a command is part of it.
      const size_t end = at_ + mark.size();
      return mark.size() + (mark != "~" && end < text_.size() && text_[end] == ' ');
    }
    return 0;
  }
  bool three_digits_at(size_t at) const {
    return digit_at(at) && digit_at(at + 1) && digit_at(at + 2) && !digit_at(at + 3);
  }

  // How many bytes of a thousands separator stand here, in front of exactly three digits. (1,234)
  // is a pair; what is typeset on purpose is a number everywhere. A blank is one unless what stands
  // before it is an exponent, an index or 0, or what follows is the fraction of a mixed number.
  size_t separator(std::string_view digits) const {
    if (const size_t mark = typeset_mark(); mark > 0 && three_digits_at(at_ + mark)) return mark;
    if (!three_digits_at(at_ + 1)) return 0;
    if (starts(",")) return brackets_ > 0 ? 0 : 1;
    if (!starts(" ") || digits[0] == '0') return 0;
    const bool is_raised = !tokens_.empty() && (tokens_.back().is("^") || tokens_.back().is("_"));
    size_t behind = at_ + 4;
    while (behind < text_.size() && is_space(text_[behind])) ++behind;
    return is_raised || (behind < text_.size() && text_[behind] == '/') ? 0 : 1;
  }

  // 3.141\,592\,65: groups of three behind the point, of which the last may be shorter.
  void grouped_places(std::string& digits) {
    const size_t point = digits.size();
    while (digit_at(at_)) digits += text_[at_++];
    while (digits.size() > point && (digits.size() - point) % 3 == 0) {
      const size_t mark = typeset_mark();
      size_t end = at_ + mark;
      while (digit_at(end)) ++end;
      const size_t size = end - at_ - mark;
      if (mark == 0 || starts("{,}") || starts(",") || size == 0 || size > 3) return;
      digits += text_.substr(at_ + mark, size);
      at_ = end;
    }
  }

  void number() {
    std::string digits;
    while (digit_at(at_)) digits += text_[at_++];
    if (digits.size() <= 3 && !digits.empty()) {
      for (size_t mark = separator(digits); mark > 0; mark = separator(digits)) {
        at_ += mark;
        digits += text_.substr(at_, 3);
        at_ += 3;
      }
    }
    if (digits.empty()) digits = "0";
    if (starts(".") && digit_at(at_ + 1)) {
      digits += text_[at_++];
      grouped_places(digits);
    } else if (starts(".") && (at_ + 1 == text_.size() || !is_ascii_letter(text_[at_ + 1]))) {
      ++at_;  // "5." is 5
    }
    if (starts("\\overline{") && recurring(digits)) return;
    if (starts("e") || starts("E")) {
      const size_t sign =
          at_ + 1 < text_.size() && (text_[at_ + 1] == '-' || text_[at_ + 1] == '+');
      if (digit_at(at_ + 1 + sign)) {
        digits += 'e';
        for (++at_; at_ < text_.size() && (digits.back() == 'e' || digit_at(at_)); ++at_)
          digits += text_[at_];
      }
    }
    push(TokenKind::kNumber, digits);
  }

  // 0.1\overline{6}: (0.1 + 6/90). False: nothing of digits recurs here.
  bool recurring(const std::string& digits) {
    const size_t begin = at_ + std::string_view("\\overline{").size();
    const size_t end = text_.find('}', begin);
    if (end == std::string_view::npos || end == begin || text_[at_ - 1] == '}') return false;
    const std::string_view period = text_.substr(begin, end - begin);
    if (!std::ranges::all_of(period, is_ascii_digit)) return false;
    const size_t point = digits.find('.');
    // "5." was read as 5; without a point the digits are those of a whole number.
    if (point == std::string::npos && text_[at_ - 1] != '.') return false;
    const size_t places = point == std::string::npos ? 0 : digits.size() - point - 1;
    at_ = end + 1;
    push(TokenKind::kSign, "(");
    push(TokenKind::kNumber, digits);
    push(TokenKind::kSign, "+");
    push(TokenKind::kNumber, std::string(period));
    push(TokenKind::kSign, "/");
    // A period of p digits behind d others is period / (10^p - 1) / 10^d.
    push(TokenKind::kNumber, std::string(period.size(), '9') + std::string(places, '0'));
    push(TokenKind::kSign, ")");
    return true;
  }

  // "10 million" and "5 percent" are no units. False: another word.
  bool multiplier(std::string_view word) {
    if (tokens_.empty() || tokens_.back().kind != TokenKind::kNumber) return false;
    if (word == "percent" || word == "percentage" || word == "pct")
      return push(TokenKind::kSign, "%"), true;
    for (const auto& [name, digits] : kMultipliers) {
      if (word != name) continue;
      push(TokenKind::kSign, "*");
      push(TokenKind::kNumber, std::string(digits));
      return true;
    }
    return false;
  }

  // "PM", "p.m." and their kin behind a number: the letter at `at_` begins one.
  bool half_of_day() {
    if (tokens_.empty() || tokens_.back().kind != TokenKind::kNumber) return false;
    const bool is_time = tokens_.size() > 1 && tokens_[tokens_.size() - 2].is(":");
    if (!is_time && !(at_ > 0 && is_space(text_[at_ - 1]))) return false;
    const char half = static_cast<char>(text_[at_] | 0x20);
    if (half != 'a' && half != 'p') return false;
    const bool dots = at_ + 1 < text_.size() && text_[at_ + 1] == '.';
    size_t end = at_ + (dots ? 2 : 1);
    if (end >= text_.size() || (text_[end] | 0x20) != 'm') return false;
    ++end;
    if (dots && end < text_.size() && text_[end] == '.') ++end;
    if (end < text_.size() && is_ascii_letter(text_[end])) return false;
    at_ = end;
    push(TokenKind::kWord, half == 'a' ? "am" : "pm");
    return true;
  }

  void letters() {
    if (half_of_day()) return;
    const size_t begin = at_;
    while (at_ < text_.size() && is_ascii_letter(text_[at_])) ++at_;
    std::string run(text_.substr(begin, at_ - begin)), lower = run;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower == "or" || lower == "and") return push(TokenKind::kSign, "or");
    if (multiplier(lower)) return;
    if (lower == "inf" || lower == "infinity") return push(TokenKind::kLetter, "\\infty");
    if (run.size() > 1 && one_of(run, kFunctions)) {
      if (run.size() == 4 && run[0] == 'a') run = "arc" + run.substr(1);  // asin
      return push(TokenKind::kName, "\\" + run);
    }
    if (run == "pi" || (run.size() > 3 && one_of(run, kLetters)))
      return push(TokenKind::kLetter, "\\" + run);
    // "5 eggs per day": behind a value and a blank three letters are a word, and 2xyz is a product.
    const bool behind =
        !tokens_.empty() && (tokens_.back().kind == TokenKind::kNumber ||
                             tokens_.back().kind == TokenKind::kWord || tokens_.back().is("°"));
    const bool spaced = begin > 0 && is_space(text_[begin - 1]) && run.size() > 2;
    if (run.size() > 3 || one_of(lower, kShortWords)) return push(TokenKind::kWord, lower);
    if ((behind && (spaced || one_of(run, kUnits))) || (upright_ && run.size() > 1))
      return push(TokenKind::kWord, run);
    for (const char c : run) push(TokenKind::kLetter, std::string(1, c));
  }

  bool unicode() {
    for (const Spelling& spelling : kUnicode) {
      if (!starts(spelling.from)) continue;
      at_ += spelling.from.size();
      if (spelling.to != "\\sqrt ") return nested(spelling.to, upright_);
      plain_root_ = true;
      const bool read = root();
      plain_root_ = false;
      return read;
    }
    // One character: a first byte and those that continue it.
    size_t bytes = 1;
    while (at_ + bytes < text_.size() && (static_cast<unsigned char>(text_[at_ + bytes]) >> 6) == 2)
      ++bytes;
    push(TokenKind::kWord, std::string(text_.substr(at_, bytes)));
    at_ += bytes;
    return true;
  }

  void sign() {
    for (const auto& [from, to] : {Spelling{"**", "^"}, Spelling{"<=", "<="}, Spelling{">=", ">="},
                                   Spelling{"!=", "!="}, Spelling{"==", "="}}) {
      if (!starts(from)) continue;
      at_ += from.size();
      return push(TokenKind::kSign, std::string(to));
    }
    const char c = text_[at_++];
    if (c == '(' || c == '[') ++brackets_;
    if (c == ')' || c == ']') --brackets_;
    push(TokenKind::kSign, std::string(1, c));
  }

  std::vector<Token>& tokens_;
  const int nesting_;
  const bool upright_;
  std::string_view text_;
  size_t at_ = 0;
  int brackets_ = 0;
  bool plain_root_ = false;
};

// The characters of full width (U+FF01 to U+FF5E) as those of ASCII, and the blanks of Unicode as
// the blank of LaTeX that may stand inside of a number. A comma of full width divides a list.
std::string narrowed(std::string_view text) {
  std::string narrow;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t ahead) {
      return i + ahead < text.size() ? static_cast<unsigned char>(text[i + ahead]) : 0U;
    };
    const unsigned wide = (byte(0) & 0xfU) << 12 | (byte(1) & 0x3fU) << 6 | (byte(2) & 0x3fU);
    const bool is_wide = (byte(0) & 0xf0U) == 0xe0U && byte(1) >> 6 == 2 && byte(2) >> 6 == 2;
    if (is_wide && wide == 0xff0cU) {
      narrow += ", ";
    } else if (is_wide && wide >= 0xff01U && wide <= 0xff5eU) {
      narrow += static_cast<char>(wide - 0xfee0U);
    } else if (is_wide && ((wide >= 0x2002U && wide <= 0x200aU) || wide == 0x202fU ||
                           wide == 0x205fU || wide == 0x3000U)) {
      narrow += '~';
    } else if (byte(0) == 0xc2U && byte(1) == 0xa0U) {
      narrow += '~';
      i += 1;
      continue;
    } else {
      narrow += text[i];
      continue;
    }
    i += 2;
  }
  return narrow;
}

// A value behind which a unit may stand.
bool ends_value(const Token& token) {
  return token.kind == TokenKind::kNumber || token.is("}") || token.is(")") || token.is("\\pi") ||
         token.is("°");
}

// The unit that begins at `token`, with its power: "m^2", also of "square metres".
std::string unit_at(std::span<const Token> tail, size_t at) {
  const std::string name = unit_of(tail[at].text);
  if (name.empty()) return name;
  const std::string_view before = at > 0 ? std::string_view(tail[at - 1].text) : "";
  if (before == "square" || before == "sq") return name + "^2";
  if (before == "cubic" || before == "cu") return name + "^3";
  for (size_t i = at + 1; i < tail.size(); ++i) {
    if (tail[i].kind == TokenKind::kNumber) return name + "^" + tail[i].text;
    if (!tail[i].is("^") && !tail[i].is("{")) break;
  }
  return name;
}

// Drops "cm", "\text{ m}^2", "km/h" and "dollars per day" behind a value: the last tokens when they
// are words that leave the value as it is, and what joins them.
void drop_unit(std::vector<Token>& tokens, std::vector<std::string>* units) {
  const auto is_unit = [](const Token& token) {
    return token.kind == TokenKind::kWord || (token.upright && token.kind == TokenKind::kLetter);
  };
  const auto first = std::ranges::find_if(tokens, is_unit);
  if (first == tokens.begin() || first == tokens.end() || !ends_value(*(first - 1))) return;
  // Whether an exponent begins at `token`: behind `^`, with a brace or without.
  const auto begins_exponent = [](auto token) {
    return (token - 1)->is("^") || ((token - 1)->is("{") && (token - 2)->is("^"));
  };
  for (auto token = first; token != tokens.end(); ++token) {
    const bool sign = token->is("-") && begins_exponent(token);
    const bool power = token->is("^") || token->is("{") || token->is("}") || sign;
    // "equals -2" is none, and says another value.
    const bool exponent =
        token->kind == TokenKind::kNumber && token->text.size() == 1 &&
        (begins_exponent(token) || ((token - 1)->is("-") && begins_exponent(token - 1)));
    const bool joins = token->is("/") || token->is("*");
    const bool letter = token->kind == TokenKind::kLetter && (token - 1)->is("/");
    if (!is_unit(*token) && !power && !exponent && !joins && !letter) return;
    if (token->kind == TokenKind::kWord && changes_value(token->text)) return;
  }
  const std::span<const Token> tail(first, tokens.end());
  for (size_t i = 0; units && i < tail.size(); ++i) {
    const std::string unit = unit_at(tail, i);
    if (!unit.empty()) units->push_back(unit);
  }
  tokens.erase(first, tokens.end());
}

}  // namespace

std::optional<std::vector<LatexToken>> latex_tokens(std::string_view text,
                                                    std::vector<std::string>* units) {
  std::vector<Token> tokens;
  if (text.size() > kMaxAnswerBytes) return std::nullopt;
  const std::string narrow = narrowed(text);
  if (!Lexer(tokens, 0, false).read(narrow)) return std::nullopt;
  const auto drop_stops = [&tokens] {
    while (!tokens.empty() && (tokens.back().is(".") || tokens.back().is(",") ||
                               tokens.back().is(";") || tokens.back().is(":")))
      tokens.pop_back();
  };
  drop_stops();
  drop_unit(tokens, units);
  drop_stops();
  return tokens;
}

std::string plain_text(const std::vector<LatexToken>& tokens) {
  std::string plain;
  const bool in_function = std::ranges::any_of(tokens, [](const Token& token) {
    return token.kind == TokenKind::kName && one_of(token.text.substr(1), kFunctions);
  });
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool single = i + 2 < tokens.size() && tokens[i].is("{") && tokens[i + 2].is("}");
    const Token& token = tokens[single ? i + 1 : i];
    if (single) i += 2;
    if (token.is("°") && !in_function) continue;
    // Blanks keep words and commands apart.
    if (!plain.empty()) plain += ' ';
    plain += token.text;
  }
  return plain;
}

}  // namespace tailrace
