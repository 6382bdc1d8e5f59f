// Some rows of metrics.jsonl for pages that begin late: of each kind as many as a chart can show,
// however long the run is.
//
// Thread: the owner's only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/run/metrics.h"

namespace tailrace {

class KeptRows {
 public:
  // Rows of a kind: at most so many, and at least half of it of a longer run.
  static constexpr size_t kMost = 1000;

  // The next row of the file.
  void add(const MetricsRow& row);
  // Each a line of the file, in its order: of each kind (supervised updates, steps, evaluations)
  // every k-th, with the last. Together at most `bytes`: the last stay, and of the others every
  // second goes until they fit.
  std::vector<std::string> lines(size_t bytes) const;

 private:
  struct Line {
    int64_t number = 0;  // of the row
    std::string text;
  };
  struct Kind {
    int64_t seen = 0, stride = 1;
    std::vector<Line> kept;
    std::optional<Line> last;  // where it is not among those
  };
  std::array<Kind, 3> kinds_;
  int64_t rows_ = 0;
};

}  // namespace tailrace
