// Seconds of work as they would be if nobody else used the machine: those that passed without those
// in which threads were ready and had no core. A plan that is made beside busy neighbours is about
// the run all the same, which may have others, or none.
//
// Thread: the one that made it.
#pragma once

#include "core/base/time.h"

namespace tailrace {

class QuietClock {
 public:
  // threads == 1: of the calling thread alone. Else of a team of so many that share the work and
  // wait for each other, so that what one of them waits for a core, all do; nothing else may work
  // in the process meanwhile. The team takes at least its CPU time divided by its threads.
  explicit QuietClock(int threads = 1);
  double seconds() const;

 private:
  int threads_;
  Time begin_;
  double waited_, cpu_;
};

}  // namespace tailrace
