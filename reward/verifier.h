// Verifiers score a finished episode from its evidence. They run in reward workers, under a
// deadline.
//
// A program or text under test that fails has failed its test (score 0). A verifier that cannot
// decide returns a Failure: that is `verifier_failed`, retried, and never a zero reward (design
// section 5).
//
// Thread: any; verifiers are immutable, but for what one may learn about the time that programs
// take.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/base/time.h"

namespace tailrace {

// The caller of a score waits a little longer than its maker, and so hears what went wrong instead
// of nothing: the scheduler (scheduler.verify_seconds), the reward worker, its verifier.
constexpr Time a_little_less(Time wait) { return wait * 9 / 10; }
constexpr Time a_little_more(Time wait) { return (wait * 10 + Time{8}) / 9; }  // its inverse
constexpr Time worker_deadline(Time verify) { return a_little_less(verify); }
constexpr Time score_budget(Time verify) { return a_little_less(worker_deadline(verify)); }

// The least whole scheduler.verify_seconds that leave a verifier this budget.
constexpr std::chrono::seconds verify_for(Time budget) {
  return std::chrono::ceil<std::chrono::seconds>(a_little_more(a_little_more(budget)));
}

// scheduler.verify_seconds, where no run says another, and what a verifier has of it.
constexpr Time kVerifySeconds = std::chrono::seconds(60),
               kScoreBudget = score_budget(kVerifySeconds);

struct Score {
  double reward = 0;
  MetricList metrics;
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  // `evidence`: JSON that the environment wrote (with the response text in it). `budget`: how long
  // it may take. Who needs longer answers a Failure that says so; whoever hangs is abandoned.
  virtual Result<Score> score(const std::string& evidence, Time budget) const = 0;

  // The least budget with which it can decide anything.
  virtual Time least_budget() const { return Time{0}; }

  // Whether this machine has what it takes, asked before a run: what it lacks is a Failure.
  virtual Result<void> check_machine() const { return {}; }

  // Whether answers to be found in the file or folder `path` are hidden from what it scores.
  virtual Result<void> check_hidden(const std::filesystem::path& /*path*/) const { return {}; }

  // Whether it could score answers to this row of a dataset (JSON) as they are meant, in this
  // budget: what is wrong is a Failure, and the data is refused before a run. Rows that it does not
  // read are all right.
  virtual Result<void> check_row(const std::string& /*row*/, Time /*budget*/) const { return {}; }
};

}  // namespace tailrace
