// What a handful of runs says of all that could have been made: a mean with its 95 % Student-t
// interval, and whether two ways of working are equal for a purpose.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tailrace {

struct Interval {
  double mean = 0, low = 0, high = 0;
  int64_t runs = 0;
};

// P(|T| < t) of Student's distribution with `freedom` >= 1 degrees of freedom, for t >= 0.
double student_within(double t, int64_t freedom);
// The t at which that is `share`, in (0, 1).
double student_quantile(double share, int64_t freedom);

// Of the mean that the values were drawn around, if they are about normal. Of at least two.
Interval mean_interval(std::span<const double> values);
// The same of `values` less `baseline`, one by one: both must be of the same seeds. What a seed
// does to both does not widen it.
Interval paired_interval(std::span<const double> values, std::span<const double> baseline);

// Absence of evidence is no evidence of absence: an interval that holds 0 and much else too is
// kUndecided.
enum class Verdict {
  kWithin,     // the whole interval is within the margin: equal for our purpose
  kLower,      // it reaches beyond the margin and lies below 0
  kHigher,     // or above
  kUndecided,  // neither
};
Verdict verdict(const Interval& difference, double margin);
// The fewest runs that would end kUndecided, if mean and spread stay as they are; none where they
// are enough already, or where a thousand would not do.
std::optional<int64_t> runs_needed(const Interval& difference, double margin);
// "within 0.05 of sync"
std::string describe(Verdict verdict, double margin, const std::string& baseline);

}  // namespace tailrace
