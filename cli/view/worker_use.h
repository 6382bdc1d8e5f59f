// How the workers of a run spent their time, and what they waited for when they had nothing to do:
// from the rows of timeline.jsonl.
//
// A worker's time counts in places: as many as it held leases at once at its busiest, which is at
// most its slots (a small run never fills a decode engine). Of four places with three leases a
// quarter is idle. What idle time is for is read off what the others do at the same moment, the
// first of these that holds: nobody has weights yet; the worker installs, is in quarantine, or
// away; a rollout worker then waits for an evaluation that it samples itself and keeps its weights
// for, for samples that still run elsewhere, for verifications, for a checkpoint, for the step that
// is trained, for an evaluation elsewhere, for installs of others; the trainer for samples,
// verifications, an evaluation, installs; a verifier for samples, for a checkpoint, for the step
// that is trained. What is left is called other: messages, fetching, publishing, and what nobody
// knows.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/ids.h"
#include "core/trajectory/timeline_rows.h"

namespace tailrace {

// Up to kInstall it is work.
enum class Use : uint8_t {
  kGenerate,
  kEvaluate,
  kVerify,
  kTrain,
  kSave,
  kWarmUp,
  kInstall,
  kForSamples,
  kForVerification,
  kForEvaluation,
  kForTraining,
  kForCheckpoint,
  kForInstall,
  kForWeights,
  kQuarantined,
  kAway,
  kOther
};
constexpr auto enum_names(Use) {
  using enum Use;
  return name_table<Use>({{kGenerate, "generate"},
                          {kEvaluate, "evaluate"},
                          {kVerify, "verify"},
                          {kTrain, "train"},
                          {kSave, "save"},
                          {kWarmUp, "warm-up"},
                          {kInstall, "install"},
                          {kForSamples, "waits for samples"},
                          {kForVerification, "waits for rewards"},
                          {kForEvaluation, "waits for an evaluation"},
                          {kForTraining, "waits for the trainer"},
                          {kForCheckpoint, "waits for a checkpoint"},
                          {kForInstall, "waits for installs"},
                          {kForWeights, "waits for version 0"},
                          {kQuarantined, "in quarantine"},
                          {kAway, "away"},
                          {kOther, "other"}});
}
inline constexpr size_t kNumUses = kEnumNames<Use>.size();
inline bool is_work(Use use) { return use <= Use::kInstall; }

using UseShares = std::array<double, kNumUses>;  // of 1, or seconds

// How many things of a kind go on at a moment, by Use, and verifications of held-out samples behind
// them. kForWeights counts 1 until there is a version.
using UseCounts = std::array<double, kNumUses + 1>;
inline constexpr size_t kEvalVerify = kNumUses;

// The wait of a worker of this role when it has nothing to do at such a moment.
Use why_idle(Role role, const UseCounts& counts);

struct WorkerUse {
  WorkerId worker;
  Role role = Role::kRollout;
  std::string cluster = {}, host = {};  // host is empty: the scheduler's
  int64_t slots = 1;                    // that it offered
  int64_t places = 1;                   // of them, in use at once at its busiest
  UseShares seconds{};                  // of the whole worker: they add up to the window
  std::vector<UseShares> bins;  // of equal length; each adds up to 1, or to 0 before it first came
};

struct RunUse {
  Time begin{}, end{};
  std::vector<WorkerUse> workers;               // rollout, reward, trainer; by name
  std::vector<std::pair<Time, int64_t>> steps;  // published in the window
  bool folded = false;  // some leases are sums of a step: of those only the mean is known
};

// The use in the window from `begin` to `end`, begin < end.
RunUse use_of_workers(std::span<const TimelineRow> rows, Time begin, Time end, int64_t num_bins);

// Shares of all places of a role together; adds up to 1, or to 0 where there are none.
UseShares shares_of(const RunUse& use, Role role);

// Mean share of the rollout workers' places that generated samples for training while the trainer
// had a step, from its hand-over to its publication, in the window of `use`, which is of these
// rows. 0 where the trainer had none.
double overlap_of(std::span<const TimelineRow> rows, const RunUse& use);

}  // namespace tailrace
