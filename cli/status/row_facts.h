// The facts that rows of metrics.jsonl tell of a run, taken row by row; rows are not kept.
//
// Thread: the owner's only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "cli/view/health.h"
#include "core/run/metrics.h"

namespace tailrace {

class RowFacts {
 public:
  // `config`: the text of the run's config.yaml; may be empty.
  explicit RowFacts(const std::string& config);

  // The next row of the file.
  void add(const MetricsRow& row);

  const Health& health() const { return health_; }
  // The newest value of each metric.
  const std::map<std::string, double>& newest() const { return newest_; }
  // At the pace of the last steps up to step `steps`; absent: nothing is known yet.
  std::optional<double> seconds_left(int64_t steps) const;

  // The step of the newest row of a step; 0: there is none.
  int64_t last_step() const { return last_step_; }

  // The updates of the newest training on rows; absent: no row tells of one.
  struct Updates {
    int64_t stage = 1;
    std::string_view kind = {};  // kRowStages
    int64_t done = 0, of = 0;
  };
  std::optional<Updates> updates() const { return updates_; }

 private:
  Health health_;
  std::map<std::string, double> newest_;
  std::deque<MetricsRow> last_;  // for the pace
  std::optional<Updates> updates_;
  int64_t last_step_ = 0;
};

}  // namespace tailrace
