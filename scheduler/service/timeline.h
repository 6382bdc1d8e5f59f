// The work of each worker of a run over time: RUN/timeline.jsonl (core/trajectory/timeline_rows.h).
//
// It looks at the state after each event, beside the journal and never for decide(): leases,
// installs, steps and checkpoints that have ended since become rows, and so do samples that no step
// trains. Rows are written before the events that they tell of are committed, and rows later than
// the state that a process begins with are removed: after a kill each row is there once, and the
// same work is told of again when it ends. A machine that loses power may lose the last of them.
//
// A step writes at most so many rows of spans. Beyond that its leases are one row a worker, and
// other rows are counted only; the trainer's spans, deciles and discarded samples are always whole.
//
// Cost: a map entry a lease and a held sample, and a row of some 300 bytes a lease. An event costs
// what it touches; all leases are looked at when some end that no action names.
//
// Thread: one at a time (the service's).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/file.h"
#include "core/base/metric_list.h"
#include "core/run/log.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"
#include "scheduler/state/action.h"
#include "scheduler/state/event.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

class Timeline {
 public:
  // Goes on where `state` stands. `rows_per_step` 0: nothing is written. A file that cannot be read
  // or written is a warning, and nothing is written: a run is worth more than its history. Borrows
  // `log`.
  // `begun`: the date of its first row; none: now.
  Timeline(const RunPaths& paths, const State& state, int64_t rows_per_step, Log& log,
           std::optional<double> begun = {});
  Timeline(const Timeline&) = delete;

  // The worker's measurements of the install that the next event tells of.
  void measure(const MetricList& metrics) { measured_ = metrics; }
  // After decide() has turned `event` into `actions`.
  void observe(const Event& event, const Actions& actions, const State& after);
  // Writes the observed rows to the file. Before the events are committed.
  void flush();
  // Why rows are missing; empty: none are.
  const std::string& failure() const { return failure_; }

 private:
  struct OpenLease {
    Lease lease;
    Time begin{};
  };
  struct Span {
    WorkerId worker;
    int64_t number = -1;
    Time begin{};
  };
  struct Seen {
    Role role = Role::kRollout;
    bool connected = true;
    Time since{};
  };
  struct Known {
    int64_t tokens = -1, min_version = -1;
    bool truncated = false;
    int64_t trained = -1;  // the step that did; -1: none yet
  };
  using Folded = std::tuple<TimelineWhat, Lane, WorkerId>;

  void open(const RunPaths& paths, const State& state, double begun);
  void warn(std::string_view what, const std::string& why);
  void remember_bodies(const State& state);
  std::string_view keep_known(std::string_view text, const State& state);
  void begin_with(const State& state);

  void compare_leases(const Event& event, const Actions& actions, const State& state);
  void compare_lease(const WorkId& work, const Event& event, const State& state);
  void end_lease(const WorkId& work, const OpenLease& open, const Event& event, const State& state);
  // Takes an attempt's result, in its row and for the step that trains it.
  void take_result(TimelineRow& row, const AttemptResult& result);
  void compare_installs(const Event& event, const Actions& actions, const State& state);
  void compare_workers(const Event& event, const Actions& actions, const State& state);
  void compare_trainer(const Event& event, const Actions& actions, const State& state);
  void on_published(const Policy& policy, Time now);
  void on_released(const Actions& actions, const State& state);

  void write_parts(const Span& install, std::string_view end, Time now);
  void end_span(TimelineWhat what, const Span& span, std::string_view end, Time now);
  void write_folded(Time now);
  void write_bounded(TimelineRow row);
  void write(const TimelineRow& row);

  Log& log_;
  const int64_t rows_per_step_;
  AppendFile file_;  // not open: nothing is written
  std::string buffer_;
  std::string failure_;

  std::map<WorkId, OpenLease> leases_;
  std::map<WorkerId, Span> installs_;  // what a worker is asked for: to stage, or to switch
  MetricList measured_;
  std::map<WorkerId, Seen> workers_;
  std::optional<Span> training_, saving_;
  std::map<BodyId, Known> bodies_;  // of the train lane, held by the state
  int64_t published_ = -1;
  int64_t last_step_ = 0;  // that has its row
  int64_t rows_ = 0;       // of spans, since the last step
  int64_t left_out_ = 0;
  std::map<Folded, TimelineRow> folded_;
};

}  // namespace tailrace::scheduler
