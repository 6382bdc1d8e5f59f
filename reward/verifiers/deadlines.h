// How long a program may take for a test, by how long right ones took: the adaptive timeout of
// RollPacker (2509.21009, section 4).
//
//   deadline = min(max(least, factor * anchor), most)
//
// anchor: the longest time of this test among programs that were right, as far as it has seen;
// without one the deadline is `most`. Nearly all programs end in a second or two, and only those
// that hang would use the whole of a fixed limit.
//
// Times are of the clock on the wall, so they depend on what else the machine does: a program that
// is right may miss 1.5 times the anchor where cores are short. `least` bounds the harm, and each
// right program that was slower raises the anchor.
//
// Thread: any. A process has its own, which begins with nothing; the oldest tests are forgotten.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>

#include "core/base/digest.h"
#include "core/base/time.h"
#include "kernels/base/mutex.h"

namespace tailrace {

struct DeadlineRule {
  double factor = 1.5;
  Time least = std::chrono::seconds(2), most = std::chrono::seconds(30);
};

Time deadline_of(std::optional<Time> anchor, const DeadlineRule& rule);

class AdaptiveDeadlines {
 public:
  // `most_tests`: how many anchors are kept, at least 1.
  AdaptiveDeadlines(DeadlineRule rule, size_t most_tests);

  // `test`: of all that decides how long a right program takes for it.
  Time of(const Digest& test) const;
  // Records the time that a right program took.
  void learn(const Digest& test, Time taken);

 private:
  const DeadlineRule rule_;
  const size_t most_tests_;
  mutable Mutex mutex_;
  std::unordered_map<Digest, Time> anchors_ TR_GUARDED_BY(mutex_);
  std::deque<Digest> by_age_ TR_GUARDED_BY(mutex_);  // the same tests, the oldest first
};

}  // namespace tailrace
