// A regular expression over the names of a model's modules, as the target_modules of peft may be.
//
// peft asks Python's re.fullmatch(). The patterns that are read are those which mean the same in
// PCRE2: classes, groups, alternatives, lookaheads that are not nested, and repetitions. They come
// from outside, so their length, their counts and the steps of a match have bounds.
//
// Thread: any, an object and its copies one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tailrace {

inline constexpr size_t kMaxModulePatternBytes = 2000;

class ModulePattern {
 public:
  // Throws UserError that says what of the pattern is not read: "has (?P, which ...".
  explicit ModulePattern(const std::string& pattern);
  // The whole name. Throws UserError where it would take too long to say.
  bool matches(const std::string& name) const;

 private:
  struct Compiled;
  std::shared_ptr<Compiled> compiled_;  // of all copies
};

// Why it is not read: a construct that Python and PCRE2 read differently, or that costs too much.
// Nothing: it has none.
std::optional<std::string> fault_of_module_pattern(std::string_view pattern);

}  // namespace tailrace
