// A line that a program wrote to its stdout, before it is read as JSON.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace tailrace::sandbox {

// The line as the parser of JSON may have it: numbers that are not finite (NaN, 1e400), which no
// JSON has, are null. A Failure for one that is nested so deep, or has so many members, that
// reading it would take all of the stack or hold the thread up.
Result<std::string> sound_line(std::string_view line);

// Why a line that is no JSON object is no answer.
std::string no_object(std::string_view line);

// The start of a text that somebody else wrote, on one line, for a message.
std::string excerpt(std::string_view text);

// The bound on a reward that a program reports: neither NaN nor infinite nor larger, of either
// sign. The squares of much larger ones in the group's statistics are not finite.
inline constexpr double kLargestReported = 1e30;
constexpr bool is_reported(double value) {
  return value >= -kLargestReported && value <= kLargestReported;
}
// Letters, digits, '_', '-' and '.', at most 64 of them: it becomes a part of the name of a metric.
inline constexpr size_t kMostMetrics = 64;
bool is_metric_name(std::string_view name);

}  // namespace tailrace::sandbox
