// Lines for a log about what may happen as often as somebody else likes: each kind is told when it
// comes first, then each time that it has come ten times as often, and at the end with its number.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/mutex.h"

namespace tailrace {

class CountedLines {
 public:
  // `kind` is of what the line is about, `line` is what is said of this time.
  void note(std::string kind, std::string line);

  // Lines that nobody has taken yet.
  std::vector<std::string> take();
  // And one of each kind that has come since it was told of. Counts begin anew.
  std::vector<std::string> take_totals();

 private:
  struct Kind {
    int64_t count = 0;
    int64_t told = 0;  // of them, by the latest line
    std::string latest = {};
  };
  Mutex mutex_;
  std::map<std::string, Kind> kinds_ TR_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ TR_GUARDED_BY(mutex_);
};

}  // namespace tailrace
