// The files of a run for people: rows of metrics.jsonl and a few episodes in samples.jsonl.
//
// A row of a training step n has step n and version n - 1 (the weights it started from): what the
// trainer sent, plus what only the scheduler sees. A row of an evaluation has step = version = the
// version under evaluation. Rows are written before the event that caused them is
// committed, and known rows are not written again: after a kill a row is there once. Where somebody
// replaces or removes the file meanwhile, its rows are put back; where rows are gone, they are
// named.
//
// Thread: one at a time (the service's).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/messages/message.h"
#include "core/run/log.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "core/trajectory/sample_rows.h"
#include "core/trajectory/trajectory.h"
#include "scheduler/state/action.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

class RunMetrics {
 public:
  // Rows beyond the policy's frontier (of a lineage that the state does not know) are removed.
  // `datasets`: their names, whose own part of a row bears them; of one alone none is needed, as it
  // is the row. `text`: of tokens, for samples; may be empty. `facts`: numbers of the run, which
  // each row of a step bears. Throws UserError when the files
  // cannot be read or written. Borrows `log`.
  RunMetrics(const RunPaths& paths, const Policy& policy, int64_t num_samples,
             std::vector<std::string> datasets, TokenText text, Log& log, MetricList facts = {});
  ~RunMetrics();  // looks once more whether the file is still there
  RunMetrics(const RunMetrics&) = delete;

  // The batch of `step` goes to the trainer; rewards are those that count. Means of what
  // environments and verifiers measured become env/NAME.
  void on_batch(int64_t step, std::span<const TrajectoryHeader> batch);
  // The policy's newest version has just been published. `start`: of its step. `sent`: the
  // trainer's part of the row; its names win.
  void on_published(const Policy& policy, const StepStart& start, const MetricList& sent);
  // A worker's measurements of an install: of all that end before the next row, the longest of each
  // NAME_ms and the sum of all else become weights/NAME.
  void on_install(const MetricList& measured);
  // False: the trainings on rows have more rows than anybody reads.
  [[nodiscard]] bool on_progress(const wire::Progress& progress);
  // `bodies`: of the members that have a reward.
  void on_evaluation(const EvalDone& report, std::span<const TrajectoryHeader> bodies);

  // The episodes that people are shown: of different prompts, the first member of each, of the
  // datasets in turn. None where the row of this step has them, or others are shown.
  std::vector<BodyId> samples_of_batch(const HandOver& batch) const;
  std::vector<BodyId> samples_of_evaluation(const EvalDone& report) const;
  // Rewards are those that count. `version`: the newest that may have sampled them.
  void write_samples(int64_t step, int64_t version, std::span<const Trajectory> trajectories);

  // Another lineage begins at version `from`: rows that rest on what it replaces are removed.
  void on_fork(int64_t from);

 private:
  struct Pending {
    int64_t step = -1;
    int64_t tokens = 0;
    MetricList values;
  };

  MetricList batch_by_dataset(std::span<const TrajectoryHeader> batch) const;
  MetricList prompts_by_dataset(const Policy& policy, const Batch& batch) const;
  MetricList evaluation_by_dataset(const EvalDone& report,
                                   std::span<const TrajectoryHeader> bodies) const;
  void open(int64_t first_version);
  void read_back();  // which rows there are
  void warn_of_missing(int64_t published);
  void keep();
  void write(int64_t step, int64_t version, MetricList values);

  RunPaths paths_;
  int64_t num_samples_;
  std::vector<std::string> datasets_;  // names; empty: there is one
  TokenText text_;
  Log& log_;
  MetricList facts_;
  std::optional<MetricsWriter> writer_;
  std::set<std::pair<int64_t, int64_t>> updates_;  // stage and update; these have their row
  std::set<int64_t> steps_, evaluations_;
  int64_t published_ = -1;
  bool evaluates_ = false;                  // a version was, or is being, evaluated
  Pending pending_;                         // of the batch that the trainer has
  std::map<std::string, double> installs_;  // since the last row
};

}  // namespace tailrace::scheduler
