// Patterns of tokenizer files, which are Oniguruma's, as PCRE2 reads them.
//
// Both read most of a pattern alike. The others are written again here: sets of characters in sets
// ([a-z[0-9]], [\p{L}&&[^\p{Han}]]), \h \v \w \s \b and the classes of POSIX, scripts (PCRE2's
// \p{Han} are the script extensions), ^ and $ (lines), (?m) (the dot takes newlines), (?i) in the
// middle (its alternatives are its own), (?x), {n,m}+ (a repetition of the repetition), {n}? and
// {,n}.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tailrace::text {

// Patterns of models have some hundred bytes.
inline constexpr size_t kMaxPatternBytes = size_t{64} << 10;

// Messages quote so much of a pattern.
inline constexpr size_t kShownPatternBytes = 500;

// Throws UserError, beginning with `where`, for what is not translated, and for a pattern that is
// longer than kMaxPatternBytes.
std::string pcre2_pattern(std::string_view pattern, std::string_view where);

}  // namespace tailrace::text
