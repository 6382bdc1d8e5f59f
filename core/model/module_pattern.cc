#include "core/model/module_pattern.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <new>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

// Copies of what repetitions with counts repeat: each is built.
constexpr int64_t kMaxCopies = 4;
// Steps back of one match, some milliseconds.
constexpr uint32_t kMatchLimit = 1'000'000;

// Looks for what may not stand in a pattern; its form is left to the compiler.
class PatternScan {
 public:
  explicit PatternScan(std::string_view pattern) : text_(pattern) {}

  std::optional<std::string> fault() {
    if (text_.size() > kMaxModulePatternBytes)
      return fmt::format("has {} bytes, more than {}", text_.size(), kMaxModulePatternBytes);
    while (at_ < text_.size())
      if (auto found = next()) return found;
    return std::nullopt;
  }

 private:
  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }

  std::optional<std::string> next() {
    const char c = text_[at_];
    if (c == '\\') return escape();
    if (c == '[') return set();
    if (c == '(') return group();
    if (c == ')' && !lookaheads_.empty()) lookaheads_.pop_back();
    if (c == '{') return counts();
    if (c == '*' || c == '+' || c == '?') return behind_repetition(1);
    ++at_;
    return std::nullopt;
  }

  // \A and \Z of Python are letters elsewhere, and \1 takes exponential time.
  std::optional<std::string> escape() {
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit || (is_letter && std::string_view("bBdDsSwW").find(c) == std::string_view::npos))
      return fmt::format("has \\{}, which is not read", c);
    at_ += 2;
    return std::nullopt;
  }

  // "[]a]" holds a bracket in Python, and "[[:alpha:]]" no class.
  std::optional<std::string> set() {
    at_ += starts("[^") ? 2 : 1;
    for (bool is_first = true; at_ < text_.size(); is_first = false) {
      const char c = text_[at_];
      if (c == '[' || (c == ']' && is_first))
        return fmt::format("has {} in brackets, which is not read; write \\{}", c, c);
      if (c == '\\') {
        if (auto found = escape()) return found;
        continue;
      }
      ++at_;
      if (c == ']') break;
    }
    return std::nullopt;
  }

  std::optional<std::string> group() {
    const bool looks = starts("(?=") || starts("(?!");
    if (starts("(?") && !looks && !starts("(?:"))
      return fmt::format("has {}, which is not read", text_.substr(at_, 3));
    if (looks && std::ranges::count(lookaheads_, true) > 0)
      return "has a lookahead in a lookahead, which is not read";
    lookaheads_.push_back(looks);
    at_ += starts("(?") ? 3 : 1;
    return std::nullopt;
  }

  // {2}, {1,} and {1,3}. Others are text, or counts, by the engine.
  std::optional<std::string> counts() {
    const size_t close = std::min(text_.find('}', at_), text_.size());
    const std::string_view inner = text_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = std::min(inner.find(','), inner.size());
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (close == text_.size() || comma == 0 || inner.empty() ||
        !std::ranges::all_of(inner.substr(0, comma), is_digit) ||
        !std::ranges::all_of(inner.substr(std::min(comma + 1, inner.size())), is_digit))
      return fmt::format("has {}, which is not read; write \\{{",
                         text_.substr(at_, close + 1 - at_));
    int64_t most = 1;
    for (const std::string_view part :
         {inner.substr(0, comma), inner.substr(std::min(comma + 1, inner.size()))}) {
      int64_t count = 1;
      const auto read = std::from_chars(part.data(), part.data() + part.size(), count);
      most = std::max(most, read.ec == std::errc::result_out_of_range ? kMaxCopies + 1 : count);
    }
    // Counts in nested groups multiply. The bound is taken over the whole pattern, which needs no
    // tree and is never too lax.
    copies_ *= std::min(most, kMaxCopies + 1);
    if (copies_ > kMaxCopies)
      return fmt::format("repeats parts {} times or more; at most {} are read", copies_,
                         kMaxCopies);
    return behind_repetition(close + 1 - at_);
  }

  // "a*+" and "a{2}+" of Python give nothing back; "a*?" is the lazy form.
  std::optional<std::string> behind_repetition(size_t bytes) {
    at_ = std::min(at_ + bytes, text_.size());
    if (starts("?")) ++at_;
    if (starts("*") || starts("+") || starts("?") || starts("{"))
      return "repeats a repetition, which is not read";
    return std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<bool> lookaheads_;  // the open groups: whether each is one
  int64_t copies_ = 1;
};

}  // namespace

std::optional<std::string> fault_of_module_pattern(std::string_view pattern) {
  return PatternScan(pattern).fault();
}

struct ModulePattern::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_match_data* data = nullptr;

  explicit Compiled(const std::string& pattern) {
    int error = 0;
    size_t offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY, &error, &offset,
                         nullptr);
    if (code == nullptr) {
      char message[256] = {};
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
      throw UserError("cannot be read as a regular expression ({}, at byte {})", message, offset);
    }
    context = pcre2_match_context_create(nullptr);
    data = pcre2_match_data_create(1, nullptr);
    if (context == nullptr || data == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, kMatchLimit);
  }
  ~Compiled() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  Compiled(const Compiled&) = delete;
};

ModulePattern::ModulePattern(const std::string& pattern) {
  if (const auto fault = fault_of_module_pattern(pattern)) throw UserError("{}", *fault);
  compiled_ = std::make_shared<Compiled>(pattern);
}

bool ModulePattern::matches(const std::string& name) const {
  const int found =
      pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(),
                  /*startoffset=*/0, /*options=*/0, compiled_->data, compiled_->context);
  if (found != PCRE2_ERROR_NOMATCH && found < 0)
    throw UserError("takes more than {} steps to match {}; write it without nested repetitions",
                    kMatchLimit, name);
  return found >= 0;
}

}  // namespace tailrace
