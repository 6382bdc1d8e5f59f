// A run's workers' activity over time, as its scheduler saw it: the rows of RUN/timeline.jsonl.
//
//   {"at_ns": 9100, "what": "generate", "from_ns": 4200, "worker": "rollout-1",
//    "sample": "policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3 attempt=1",
//    "end": "finished", "tokens": 14, "versions": [4, 4], "reward": 1, "proof": "9f.."}
//
// Times are the scheduler's: they count from the start of the run and stand still while it is down.
// Rows stand in the order of `at_ns`; of a span that is its end. The proof is one of the row
// (json_file.h).
//
// Thread: any.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/base/time.h"

namespace tailrace {

// From kGenerate to kSave they are spans of a worker, each with how it ended.
enum class TimelineWhat : uint8_t {
  kStart,       // a process of the scheduler begins; `unix_seconds`
  kUp,          // the worker is there; `role`, `slots`; `pool`, `cluster`, `host` if any
  kDown,        // it is not; `end` says how
  kQuarantine,  // it gets no work before `until`
  kWarmUp,      // the trainer, before version 0
  kGenerate,    // a lease of a sample: from its grant to its result
  kVerify,      // the same of its verification
  kInstall,     // of version `number`, in two: until it is staged, and the switch
  kTrain,       // step `number`: from its hand-over to its publication
  kSave,        // a checkpoint of version `number`
  kStep,        // step `number` is published: what was trained
  kDiscarded,   // samples that no step trains; `end` says why
  // Parts of the install of version `number` before it, as its worker measured them: from `from` to
  // `until`.
  kFetch,   // the weights come; not of a worker that reads them where they lie
  kStage,   // they are proved and packed
  kSwitch,  // they take the place of those before
};
constexpr auto enum_names(TimelineWhat) {
  using enum TimelineWhat;
  return name_table<TimelineWhat>({{kStart, "start"},
                                   {kUp, "up"},
                                   {kDown, "down"},
                                   {kQuarantine, "quarantine"},
                                   {kWarmUp, "warm_up"},
                                   {kGenerate, "generate"},
                                   {kVerify, "verify"},
                                   {kInstall, "install"},
                                   {kTrain, "train"},
                                   {kSave, "save"},
                                   {kStep, "step"},
                                   {kDiscarded, "discarded"},
                                   {kFetch, "fetch"},
                                   {kStage, "stage"},
                                   {kSwitch, "switch"}});
}
bool is_span(TimelineWhat what);
bool is_install_part(TimelineWhat what);  // kFetch, kStage, kSwitch
bool is_lease(TimelineWhat what);         // kGenerate, kVerify

// The smallest, the nine deciles (nearest rank) and the largest.
using Deciles = std::array<int64_t, 11>;
Deciles deciles_of(std::vector<int64_t> values);  // not empty

struct TimelineRow {
  // The facts of a sample that no step trains.
  struct Sample {
    int64_t tokens = -1;     // sampled; -1: not known any more
    int64_t staleness = -1;  // versions, against the newest weights; -1: nothing was sampled
    bool truncated = false;
    friend bool operator==(const Sample&, const Sample&) = default;
  };
  // The facts of the samples that a step trained.
  struct Trained {
    int64_t samples = 0, truncated = 0;
    Deciles tokens{}, staleness{};  // without samples: 0
    friend bool operator==(const Trained&, const Trained&) = default;
  };

  TimelineWhat what = TimelineWhat::kStart;
  Time at{}, from{};  // equal but for spans
  WorkerId worker = {};
  std::string end = {};

  // Leases. Those beyond what a step may write are one row a worker: `sample` is absent, and their
  // number and the sum of their spans stand there instead.
  std::optional<BodyId> sample = {};
  Lane lane = Lane::kTrain;
  int64_t leases = 1;
  Time busy{};
  int32_t verify_attempt = 0;
  int32_t prefix_turns = 0;  // of an attempt before it, that it went on from
  int64_t tokens = -1, min_version = -1, max_version = -1;  // -1: it has no sample
  std::optional<double> reward = {};

  int64_t number = -1;  // a step or a version
  Role role = Role::kRollout;
  int64_t slots = 0;
  std::string pool = {}, cluster = {}, host = {};
  Time until{};
  double unix_seconds = 0;
  Trained trained = {};
  int64_t left_out = 0;  // kStep: rows beyond what the step may write, those of leases aside
  std::vector<Sample> samples = {};

  friend bool operator==(const TimelineRow&, const TimelineRow&) = default;
};

// One line without its newline, and back. A Failure says what is wrong with the line.
std::string format_timeline_row(const TimelineRow& row);
Result<TimelineRow> parse_timeline_row(std::string_view line);

struct TimelineFile {
  std::vector<TimelineRow> rows;
  std::vector<std::string> damaged;  // "FILE:LINE: why", of the first few
  int64_t num_damaged = 0;
  int64_t skipped_bytes = 0;  // in front, of a file beyond `max_bytes`
};
// All rows but damaged ones; a last line without its newline may still be written, and is ignored.
// Of a larger file than `max_bytes` its end, since a row takes more memory than its line. A Failure
// where the file cannot be read at all.
Result<TimelineFile> read_timeline(const std::filesystem::path& path,
                                   int64_t max_bytes = int64_t{256} << 20);

}  // namespace tailrace
