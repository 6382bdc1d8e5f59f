// A regular expression over the names of a model's modules, as the target_modules of peft may be.
//
// peft asks Python's re.fullmatch(). The patterns that are read are those which mean the same in
// ECMAScript: classes, groups, alternatives, lookaheads that are not nested, and repetitions. They
// come from outside, so their length and their counts have bounds, and matching takes polynomial
// time.
//
// Thread: any.
#pragma once

#include <optional>
#include <regex>
#include <string>
#include <string_view>

namespace tailrace {

inline constexpr size_t kMaxModulePatternBytes = 2000;

class ModulePattern {
 public:
  // Throws UserError that says what of the pattern is not read: "has (?P, which ...".
  explicit ModulePattern(const std::string& pattern);
  // The whole name.
  bool matches(const std::string& name) const;

 private:
  std::regex regex_;
};

// Why it is not read: a construct that Python and ECMAScript read differently, or that costs too
// much. Nothing: it has none.
std::optional<std::string> fault_of_module_pattern(std::string_view pattern);

}  // namespace tailrace
