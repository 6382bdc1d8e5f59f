#include "core/text/oniguruma.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "core/base/error.h"
#include "core/base/printable.h"

namespace tailrace::text {
namespace {

constexpr int kMaxDepth = 100;  // of sets in sets
constexpr size_t kShownPartBytes = 60;

// The inside of a set. PCRE2's own \s also holds U+180E.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of a set Oniguruma counts these digits of Latin-1, and none of their kind elsewhere.
constexpr std::string_view kWordAlone =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kHex = "0-9A-Fa-f";

struct Posix {
  std::string_view name, inside;
};
constexpr Posix kPosix[] = {{"alnum", R"(\p{Alphabetic}\p{Nd})"},
                            {"alpha", R"(\p{Alphabetic})"},
                            {"ascii", R"(\x00-\x7F)"},
                            {"blank", R"(\t\p{Zs})"},
                            {"cntrl", R"(\p{Cc})"},
                            {"digit", R"(\p{Nd})"},
                            {"lower", R"(\p{Lowercase})"},
                            {"punct", R"(\p{P}\p{S})"},
                            {"space", kSpace},
                            {"upper", R"(\p{Uppercase})"},
                            {"word", kWord},
                            {"xdigit", kHex}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// Asks the library itself: which names are scripts depends on the Unicode of the PCRE2 that is
// linked.
bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// Characters, as a pattern that takes one of them. While they are neither a complement nor an
// intersection, `inside` says what stands between the brackets of a set.
struct Characters {
  std::string inside = {};
  std::vector<std::string> others = {};  // patterns of one character each, united with `inside`

  bool empty() const { return inside.empty() && others.empty(); }
  std::string pattern() const {
    // PCRE2 takes a ']' right behind '[' for a character, so an empty set needs another form: one
    // that never matches.
    if (empty()) return "(?!)";
    std::string all = inside.empty() ? "" : "[" + inside + "]";
    if (others.empty()) return all;
    for (const std::string& other : others) all += (all.empty() ? "" : "|") + other;
    return "(?:" + all + ")";
  }
  // Intersections cannot be negated between brackets, so the rest is "no such character here, then
  // any one". The s lets the dot take a newline, which a set takes too.
  std::string complement() const {
    if (empty()) return "(?s:.)";
    if (others.empty()) return "[^" + inside + "]";
    return "(?:(?!" + pattern() + ")(?s:.))";
  }
  void unite(const Characters& more) {
    inside += more.inside;
    others.insert(others.end(), more.others.begin(), more.others.end());
  }
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) step();
    close_options();
    return with_repeated();
  }

 private:
  struct Group {
    size_t begin = 0;  // in `out_`
    bool extended = false;
    int num_options = 0;
  };

  [[noreturn]] void refuse(std::string_view part, std::string_view why) const {
    throw UserError("{}: the pattern '{}' has '{}' before byte {}, {}", where_,
                    shortened(in_, kShownPatternBytes), shortened(part, kShownPartBytes), at_, why);
  }
  [[noreturn]] void refuse_unknown(std::string_view part) const {
    refuse(part, "which Tailrace does not read as the tokenizers library does");
  }

  bool begins(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  // `out_` with the groups of `repeated_`. Each inserted where it is found would cost n^2.
  std::string with_repeated() {
    if (repeated_.empty()) return std::move(out_);
    std::ranges::sort(repeated_);
    std::string all;
    size_t done = 0;
    for (const size_t begin : repeated_) {
      all.append(out_, done, begin - done).append("(?:");
      done = begin;
    }
    return all.append(out_, done);
  }

  void step() {
    const char c = peek();
    if (c == '\\') return escape();
    if (c == '[') {
      ++at_;
      return atom(set(0));
    }
    if (c == '(') return open();
    if (c == ')') return close();
    if (c == '{' && interval()) return;
    if (extended_ && c == '#') {
      at_ = std::min(in_.find('\n', at_), in_.size());
      return;
    }
    ++at_;
    // In Oniguruma's own syntax, which is Ruby's, both hold at each line, whatever the options.
    if (c == '^') return atom("(?m:^)");
    if (c == '$') return atom("(?m:$)");
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      out_ += c;
    } else if (!extended_ || std::string_view(" \t\n\r\f").find(c) == std::string_view::npos) {
      // Else the last byte of a character of several would be the atom.
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) atom_ = out_.size();
      if (c == '{') out_ += '\\';
      out_ += c;
    }
  }

  void open() {
    const size_t begin = out_.size();
    const bool extended = extended_;
    if (begins("(*")) refuse_unknown("(*");
    if (begins("(?#")) {
      const size_t end = in_.find(')', at_);
      at_ = end == in_.npos ? in_.size() : end + 1;
      return;
    }
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (begins(known)) {
        at_ += known.size();
        out_ += known;
        return push(begin, extended);
      }
    if (begins("(?<") && is_letter(peek(3))) {
      const size_t end = std::min(in_.find('>', at_), in_.size() - 1);
      out_ += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      return push(begin, extended);
    }
    if (!begins("(?")) {
      ++at_;
      out_ += '(';
      return push(begin, extended);
    }
    options();
  }

  void push(size_t begin, bool extended) {
    groups_.push_back({.begin = begin, .extended = extended, .num_options = num_options_});
    num_options_ = 0;
  }

  // (?imx-imx) or (?imx-imx:. The first has for its group all that follows up to the end of the
  // group around it, alternatives and all: a(?i)b|c is a(?i:b|c). Blanks and comments are taken out
  // here, so PCRE2, which would take out others too, is not told of x.
  void options() {
    const size_t begin = out_.size();
    const bool extended = extended_;
    std::string text = "(?";
    bool on = true;
    size_t size = 2;
    for (;; ++size) {
      const char c = peek(size);
      if (c == ':' || c == ')') break;
      if (c == '-') {
        on = false;
        text += c;
      } else if (c == 'x') {
        extended_ = on;
      } else if (c == 'i' || c == 'm') {
        // Ruby's m lets the dot take a newline, which Perl calls s.
        text += c == 'm' ? 's' : c;
      } else {
        refuse_unknown(in_.substr(at_, size + 1));
      }
    }
    if (size == 2) refuse_unknown(in_.substr(at_, size + 1));
    out_ += text + ":";
    const bool is_group = peek(size) == ':';
    at_ += size + 1;
    if (is_group) return push(begin, extended);
    ++num_options_;
  }

  void close_options() {
    out_.append(static_cast<size_t>(num_options_), ')');
    num_options_ = 0;
  }

  void close() {
    ++at_;
    close_options();
    out_ += ')';
    if (groups_.empty()) return;  // an error that PCRE2 tells
    const Group& group = groups_.back();
    atom_ = group.begin;
    extended_ = group.extended;
    num_options_ = group.num_options;
    groups_.pop_back();
  }

  // {n}, {n,}, {n,m}, {,m}; what is none of these is text.
  bool interval() {
    size_t size = 1;
    std::string low, high;
    while (is_digit(peek(size))) low += peek(size++);
    bool comma = false;
    if (peek(size) == ',') {
      comma = true;
      ++size;
      while (is_digit(peek(size))) high += peek(size++);
    }
    if (peek(size) != '}' || (low.empty() && high.empty())) return false;
    at_ += size + 1;
    out_ += "{" + (low.empty() ? "0" : low) + (comma ? "," : "") + high + "}";
    // To PCRE2 these would be possessive and lazy.
    if (peek() == '+' || (peek() == '?' && !comma)) {
      repeated_.push_back(atom_);
      out_ += ')';
    }
    return true;
  }

  void escape() {
    const char c = peek(1);
    if (c == 'b' || c == 'B') {
      at_ += 2;
      // Not PCRE2's own \b, which goes by its own \w: the borders would lie elsewhere at characters
      // that only one of the two counts as a word's.
      const std::string word = "[" + std::string(kWordAlone) + "]";
      const std::string behind = "(?<=" + word + ")", not_behind = "(?<!" + word + ")",
                        before = "(?=" + word + ")", not_before = "(?!" + word + ")";
      const std::string same = not_behind + not_before + "|" + behind + before,
                        other = not_behind + before + "|" + behind + not_before;
      return atom("(?:" + (c == 'b' ? other : same) + ")");
    }
    if (std::string_view("AzZGKRXNk").find(c) != std::string_view::npos || (c >= '1' && c <= '9')) {
      if (c >= '1' && c <= '9' && is_digit(peek(2))) refuse_unknown(in_.substr(at_, 3));
      if (c == 'k') return named_reference();
      atom(in_.substr(at_, 2));
      at_ += 2;
      return;
    }
    if (c == 'O') {
      at_ += 2;
      return atom("(?s:.)");
    }
    bool single = false;
    const Characters characters = escaped(single, /*in_set=*/false);
    atom(single ? characters.inside : characters.pattern());
  }

  // \k<name> or \k'name'
  void named_reference() {
    const char open = peek(2);
    const size_t end = open == '<'    ? in_.find('>', at_ + 3)
                       : open == '\'' ? in_.find(open, at_ + 3)
                                      : in_.npos;
    if (end == in_.npos) refuse_unknown(in_.substr(at_, 3));
    atom(in_.substr(at_, end + 1 - at_));
    at_ = end + 1;
  }

  // An escape that means characters, in a set or not. `single`: it is one, which may begin a range.
  Characters escaped(bool& single, bool in_set) {
    single = false;
    const char c = peek(1);
    const auto taken = [&](std::string_view inside) {
      at_ += 2;
      return Characters{.inside = std::string(inside)};
    };
    const auto rest = [&](std::string_view inside) {
      at_ += 2;
      return Characters{.others = {"[^" + std::string(inside) + "]"}};
    };
    switch (c) {
      case 's':
        return taken(kSpace);
      case 'S':
        return rest(kSpace);
      case 'w':
        return taken(in_set ? kWord : kWordAlone);
      case 'W':
        return rest(in_set ? kWord : kWordAlone);
      case 'h':
        return taken(kHex);
      case 'H':
        return rest(kHex);
      case 'd':
        return taken(R"(\p{Nd})");
      case 'D':
        return taken(R"(\P{Nd})");
      case 'p':
      case 'P':
        if (peek(2) == '{') return property(in_set);
        break;
      default:
        break;
    }
    single = true;
    return {.inside = escaped_character(in_set)};
  }

  // As PCRE2 writes it, in a set or not.
  std::string escaped_character(bool in_set) {
    const char c = peek(1);
    if (c == '\0') refuse_unknown("\\");
    if (c == 'v') {
      at_ += 2;
      return R"(\x0B)";
    }
    if (c == 'x' || c == 'u') {
      size_t size = 2;
      std::string digits;
      if (c == 'x' && peek(2) == '{') {
        for (++size; is_hex(peek(size)); ++size) digits += peek(size);
        if (peek(size++) != '}') refuse_unknown(in_.substr(at_, size));
      } else {
        const size_t most = c == 'x' ? 2 : 4;
        for (; digits.size() < most && is_hex(peek(size)); ++size) digits += peek(size);
        if (c == 'u' && digits.size() < most) refuse_unknown(in_.substr(at_, 2));
        // A byte, and perhaps a part of a character.
        if (c == 'x' && digits.size() == 2 && digits[0] >= '8') refuse_unknown(in_.substr(at_, 4));
      }
      if (digits.empty()) refuse_unknown(in_.substr(at_, 2));
      at_ += size;
      return "\\x{" + digits + "}";
    }
    if (c == '0' || (in_set && is_digit(c))) {
      size_t size = 1;
      unsigned value = 0;
      for (; size <= 3 && peek(size) >= '0' && peek(size) <= '7'; ++size)
        value = value * 8 + static_cast<unsigned>(peek(size) - '0');
      if (size == 1 || value > 0x7F) refuse_unknown(in_.substr(at_, std::max<size_t>(size, 2)));
      at_ += size;
      return fmt::format("\\x{{{:X}}}", value);
    }
    if (is_letter(c)) {
      const bool same = std::string_view("aefnrt").find(c) != std::string_view::npos;
      if (!same && !(c == 'b' && in_set) &&
          std::string_view("gcCMyYQE").find(c) != std::string_view::npos)
        refuse_unknown(in_.substr(at_, 2));
      at_ += 2;
      return same || (c == 'b' && in_set) ? std::string("\\") + c : std::string(1, c);
    }
    at_ += 2;
    // The other bytes of a character follow.
    return static_cast<unsigned char>(c) >= 0x80 ? std::string(1, c) + more_bytes()
                                                 : std::string("\\") + c;
  }

  std::string more_bytes() {
    std::string bytes;
    while ((static_cast<unsigned char>(peek()) & 0xC0) == 0x80) bytes += in_[at_++];
    return bytes;
  }

  // \p{Han}, \p{^Han}, \P{Han}
  Characters property(bool in_set) {
    const size_t end = in_.find('}', at_);
    if (end == in_.npos) refuse_unknown(in_.substr(at_));
    std::string name(in_.substr(at_ + 3, end - at_ - 3));
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    // \p{sc=Han} and \p{L&} are known to PCRE2 alone.
    if (!std::ranges::all_of(name, [](char c) {
          return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == ' ';
        }))
      refuse_unknown(in_.substr(at_, end + 1 - at_));
    at_ = end + 1;
    std::string plain;
    for (const char c : name)
      if (is_letter(c) || is_digit(c)) plain += static_cast<char>(c | (is_letter(c) ? 0x20 : 0));
    // The names of POSIX are properties too, but for one.
    const auto* posix = std::ranges::find(kPosix, plain, &Posix::name);
    if (posix != std::end(kPosix)) {
      std::string inside(plain == "word" && !in_set ? kWordAlone : posix->inside);
      if (plain == "punct") inside = R"(\p{P})";
      if (negated) return {.others = {"[^" + inside + "]"}};
      return {.inside = std::move(inside)};
    }
    // A script's bare name means its extensions to PCRE2, which takes in characters that several
    // scripts share; Oniguruma means the script alone.
    if (compiles("\\p{sc:" + plain + "}")) plain = "sc:" + plain;
    return {.inside = (negated ? "\\P{" : "\\p{") + plain + "}"};
  }

  // [:alpha:], [:^alpha:]
  bool posix(Characters& into) {
    if (!begins("[:")) return false;
    const size_t end = in_.find(":]", at_ + 2);
    if (end == in_.npos) return false;
    std::string_view name = in_.substr(at_ + 2, end - at_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (!std::ranges::all_of(name, is_letter)) return false;
    const auto* found = std::ranges::find(kPosix, name, &Posix::name);
    if (found == std::end(kPosix)) refuse_unknown(in_.substr(at_, end + 2 - at_));
    at_ = end + 2;
    if (negated) {
      into.others.push_back("[^" + std::string(found->inside) + "]");
    } else {
      into.inside += found->inside;
    }
    return true;
  }

  // Behind its '['; as a pattern of one character.
  std::string set(int depth) {
    bool negated = false;
    const Characters all = set_of(depth, negated);
    return negated ? all.complement() : all.pattern();
  }

  Characters set_of(int depth, bool& negated) {
    if (depth > kMaxDepth) refuse("[", "a set nested more than 100 deep");
    negated = peek() == '^';
    if (negated) {
      ++at_;
      ++num_negated_;
    }
    std::vector<Characters> operands(1);
    bool first = true;
    while (peek() != ']' || first) {
      if (at_ >= in_.size()) refuse("[", "a set without an end");
      first = false;
      if (begins("&&")) {
        at_ += 2;
        operands.emplace_back();
        continue;
      }
      Characters& into = operands.back();
      if (peek() == '[') {
        if (posix(into)) continue;
        const size_t begin = ++at_;
        bool inner_negated = false;
        const Characters inner = set_of(depth + 1, inner_negated);
        const std::string_view text = in_.substr(begin, at_ - begin);
        // Oniguruma takes characters beyond ASCII into some of these that are not in them.
        if (inner_negated && num_negated_ > 0 && text.find('[') != text.npos)
          refuse("[" + std::string(text), "a negated set of sets in a negated set");
        if (inner_negated) {
          into.others.push_back(inner.complement());
        } else {
          into.unite(inner);
        }
      } else {
        item(into);
      }
    }
    ++at_;
    if (negated) --num_negated_;
    if (operands.size() == 1) return std::move(operands[0]);
    std::string both = "(?:";
    // PCRE2 has no intersection of sets: each but the last looks ahead at the one character that
    // the last then takes.
    for (size_t i = 0; i + 1 < operands.size(); ++i) both += "(?=" + operands[i].pattern() + ")";
    return {.others = {both + operands.back().pattern() + ")"}};
  }

  // A character, a range, or an escape that means several characters.
  void item(Characters& into) {
    bool single = true;
    const bool dash = peek() == '-';
    const Characters low =
        peek() == '\\' ? escaped(single, /*in_set=*/true) : Characters{.inside = plain_character()};
    into.unite(low);
    if (peek() != '-' || peek(1) == ']') return;
    if (dash) refuse_unknown("--");
    if (!single) refuse_unknown("-");
    ++at_;
    if (peek() == '[' || begins("&&")) refuse_unknown("-");
    const Characters high =
        peek() == '\\' ? escaped(single, /*in_set=*/true) : Characters{.inside = plain_character()};
    if (!single) refuse_unknown("-");
    into.inside += "-" + high.inside;
    // Behind a range a dash is text, and begins none.
    if (peek() != '-' || peek(1) == ']') return;
    if (peek(1) == '-' || peek(2) == '-') refuse_unknown("--");
    ++at_;
    into.inside += "\\-";
  }

  std::string plain_character() {
    if (at_ >= in_.size()) refuse("[", "a set without an end");
    const char c = in_[at_++];
    if (static_cast<unsigned char>(c) >= 0x80) return c + more_bytes();
    if (std::string_view("^-[]&").find(c) != std::string_view::npos) return std::string("\\") + c;
    return std::string(1, c);
  }

  std::string_view in_, where_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;               // where the newest atom begins in `out_`
  std::vector<size_t> repeated_;  // places of `out_` before which a group opens
  bool extended_ = false;
  int num_options_ = 0;  // groups of options that end with the group around this place
  int num_negated_ = 0;  // sets around this place
  std::vector<Group> groups_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, std::string_view where) {
  if (pattern.size() > kMaxPatternBytes)
    throw UserError("{}: the pattern has {} bytes, more than {}; it begins with '{}'", where,
                    pattern.size(), kMaxPatternBytes, shortened(pattern, kShownPartBytes));
  return Translator(pattern, where).run();
}

}  // namespace tailrace::text
