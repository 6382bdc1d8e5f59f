#include "cli/view/worker_use.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/time.h"

namespace tailrace {
namespace {

Use use_of(const TimelineRow& row) {
  switch (row.what) {
    case TimelineWhat::kVerify:
      return Use::kVerify;
    case TimelineWhat::kTrain:
      return Use::kTrain;
    case TimelineWhat::kSave:
      return Use::kSave;
    case TimelineWhat::kWarmUp:
      return Use::kWarmUp;
    case TimelineWhat::kInstall:
      return Use::kInstall;
    default:
      return row.lane == Lane::kEval ? Use::kEvaluate : Use::kGenerate;
  }
}

Role role_by(TimelineWhat what) {
  if (what == TimelineWhat::kVerify) return Role::kReward;
  return what == TimelineWhat::kGenerate || what == TimelineWhat::kInstall ? Role::kRollout
                                                                           : Role::kTrainer;
}

// How many things of a kind go on, from a moment on.
struct Change {
  Time time;
  size_t counter;
  double by;
};
// Ends before begins of the same moment: who is given the next lease at once never held two.
void sort_changes(std::vector<Change>& changes) {
  std::ranges::stable_sort(changes, {}, [](const Change& c) { return std::pair(c.time, c.by); });
}

using Counts = UseCounts;

bool any(const Counts& counts, Use use) { return counts[static_cast<size_t>(use)] > 1e-9; }

}  // namespace

Use why_idle(Role role, const UseCounts& counts) {
  using enum Use;
  if (any(counts, kForWeights)) return kForWeights;
  const bool evaluates = any(counts, kEvaluate) || counts[kEvalVerify] > 1e-9;
  switch (role) {
    case Role::kRollout:
      if (any(counts, kGenerate)) return kForSamples;
      if (any(counts, kVerify)) return kForVerification;
      if (any(counts, kSave)) return kForCheckpoint;  // before the step that is handed over already
      if (any(counts, kTrain)) return kForTraining;
      if (evaluates) return kForEvaluation;
      return any(counts, kInstall) ? kForInstall : kOther;
    case Role::kReward:
      if (any(counts, kGenerate) || any(counts, kEvaluate)) return kForSamples;
      if (any(counts, kSave)) return kForCheckpoint;  // before the step that is handed over already
      if (any(counts, kTrain)) return kForTraining;
      return any(counts, kInstall) ? kForInstall : kOther;
    case Role::kTrainer:
      if (any(counts, kGenerate)) return kForSamples;
      if (any(counts, kVerify)) return kForVerification;
      if (evaluates) return kForEvaluation;
      return any(counts, kInstall) ? kForInstall : kOther;
  }
  return kOther;  // not reached
}

namespace {

// Why an idle worker of each role is idle, from a moment on.
struct Cause {
  Time time;
  std::array<Use, kEnumNames<Role>.size()> why;
};

std::vector<Cause> causes_of(std::span<const TimelineRow> rows, Time end) {
  std::vector<Change> changes;
  Time first_weights = end;
  for (const TimelineRow& row : rows) {
    if (row.what == TimelineWhat::kWarmUp) first_weights = std::min(first_weights, row.at);
    if (!is_span(row.what)) continue;
    size_t counter = static_cast<size_t>(use_of(row));
    if (row.what == TimelineWhat::kVerify && row.lane == Lane::kEval) counter = kEvalVerify;
    changes.push_back({row.from, counter, 1});
    changes.push_back({row.at, counter, -1});
  }
  // A run that is continued, or whose first row was left out, has weights already.
  const bool begins_here = std::ranges::any_of(
      rows, [](const TimelineRow& row) { return row.what == TimelineWhat::kWarmUp; });
  const bool has_worked = std::ranges::any_of(
      rows, [](const TimelineRow& row) { return row.what == TimelineWhat::kGenerate; });
  // Until its first version everybody waits for weights, whatever the other counts say.
  if (begins_here || !has_worked) {
    changes.push_back({Time{}, static_cast<size_t>(Use::kForWeights), 1});
    changes.push_back({first_weights, static_cast<size_t>(Use::kForWeights), -1});
  }
  sort_changes(changes);
  std::vector<Cause> causes;
  Counts counts{};
  for (size_t i = 0; i < changes.size(); ++i) {
    counts[changes[i].counter] += changes[i].by;
    // Between two changes of one moment nothing lasted, and a cause there would be a flash that
    // nobody saw.
    if (i + 1 < changes.size() && changes[i + 1].time == changes[i].time) continue;
    Cause cause{changes[i].time, {}};
    for (size_t role = 0; role < cause.why.size(); ++role)
      cause.why[role] = why_idle(static_cast<Role>(role), counts);
    if (causes.empty() || causes.back().why != cause.why) causes.push_back(cause);
  }
  return causes;
}

// The facts of one worker, apart from causes.
struct Known {
  Role role = Role::kRollout;
  bool has_role = false;
  std::string cluster = {}, host = {};  // as it said them last
  int64_t slots = 1;
  std::vector<Change> changes;  // of its work, by Use; of its state, below
};
constexpr size_t kPresence = static_cast<size_t>(Use::kAway);  // 1: it is here
constexpr size_t kRest = static_cast<size_t>(Use::kQuarantined);

std::map<WorkerId, Known> workers_of(std::span<const TimelineRow> rows) {
  std::map<WorkerId, Known> workers;
  std::map<WorkerId, bool> here;
  std::map<WorkerId, Time> rests;  // until when
  for (const TimelineRow& row : rows) {
    if (row.worker.empty()) continue;
    Known& known = workers[row.worker];
    // Its up row may have been left out, and who works is here; but what it lost ends after it
    // left.
    const bool comes = row.what == TimelineWhat::kUp
                           ? !here[row.worker]
                           : is_span(row.what) && !here.contains(row.worker);
    if (comes) {
      here[row.worker] = true;
      known.changes.push_back({row.from, kPresence, 1});
    }
    if (row.what == TimelineWhat::kUp) {
      known.role = row.role;
      known.has_role = true;
      known.cluster = row.cluster;
      known.host = row.host;
      known.slots = std::max(known.slots, row.slots);
    } else if (row.what == TimelineWhat::kDown) {
      if (std::exchange(here[row.worker], false)) known.changes.push_back({row.at, kPresence, -1});
    } else if (row.what == TimelineWhat::kQuarantine) {
      // A later row shortens or prolongs it.
      const Time until = std::exchange(rests[row.worker], row.until);
      // From here on the earlier row does not count any more: it ends now, and its own end is
      // cancelled out.
      if (until > row.at) known.changes.push_back({until, kRest, 1});
      if (until > row.at) known.changes.push_back({row.at, kRest, -1});
      if (row.until > row.at) {
        known.changes.push_back({row.at, kRest, 1});
        known.changes.push_back({row.until, kRest, -1});
      }
    } else if (is_span(row.what) && row.at > row.from) {
      if (!known.has_role) known.role = role_by(row.what);
      // A sum of leases counts by its mean.
      const double count = is_lease(row.what) && !row.sample
                               ? seconds_of(row.busy) / seconds_of(row.at - row.from)
                               : 1;
      known.changes.push_back({row.from, static_cast<size_t>(use_of(row)), count});
      known.changes.push_back({row.at, static_cast<size_t>(use_of(row)), -count});
    }
  }
  return workers;
}

// Leases that it held at once, at its busiest: a mean, where that is all that is known.
int64_t places_of(const Known& known) {
  double held = 0, most = 1;
  for (const Change& change : known.changes) {
    if (change.counter > static_cast<size_t>(Use::kVerify)) continue;
    held += change.by;
    most = std::max(most, held);
  }
  const auto places = static_cast<int64_t>(std::ceil(most - 1e-6));
  // Its slots are not known where its first row was left out.
  return known.has_role ? std::min(known.slots, places) : places;
}

// Gathers what a worker does from moment to moment.
class Gatherer {
 public:
  Gatherer(Time begin, Time end, int64_t num_bins, WorkerUse& out)
      : begin_(begin),
        end_(end),
        bin_(seconds_of(end - begin) / static_cast<double>(num_bins)),
        out_(out) {
    out_.bins.resize(static_cast<size_t>(num_bins));
  }

  void add(Time from, Time until, const UseShares& shares) {
    const double low = seconds_of(std::max(from, begin_) - begin_);
    const double high = seconds_of(std::min(until, end_) - begin_);
    if (low >= high) return;
    for (size_t use = 0; use < kNumUses; ++use) out_.seconds[use] += (high - low) * shares[use];
    const auto last = static_cast<int64_t>(out_.bins.size()) - 1;
    const auto first = std::clamp(static_cast<int64_t>(low / bin_), int64_t{0}, last);
    for (int64_t i = first; i <= last; ++i) {
      const double left = static_cast<double>(i) * bin_;
      if (left >= high) break;
      const double part = (std::min(high, left + bin_) - std::max(low, left)) / bin_;
      if (part <= 0) continue;
      for (size_t use = 0; use < kNumUses; ++use)
        out_.bins[static_cast<size_t>(i)][use] += part * shares[use];
    }
  }

 private:
  Time begin_, end_;
  double bin_;  // seconds
  WorkerUse& out_;
};

UseShares shares_now(const Counts& counts, int64_t places, Use why) {
  UseShares shares{};
  const auto give = [&](Use use, double share) { shares[static_cast<size_t>(use)] = share; };
  if (counts[kPresence] < 0.5) {
    give(Use::kAway, 1);
    return shares;
  }
  double busy = 0;
  for (const Use use :
       {Use::kGenerate, Use::kEvaluate, Use::kVerify, Use::kTrain, Use::kSave, Use::kWarmUp}) {
    const double share =
        std::max(0.0, counts[static_cast<size_t>(use)]) / static_cast<double>(places);
    give(use, share);
    busy += share;
  }
  // A trainer has its next step while it writes a checkpoint, and begins it after that.
  const double saving = shares[static_cast<size_t>(Use::kSave)];
  double& training = shares[static_cast<size_t>(Use::kTrain)];
  if (saving > 0) busy -= std::exchange(training, 0);
  // Rounding, and slots that were left out.
  if (busy > 1) {
    for (double& share : shares) share /= busy;
    return shares;
  }
  if (any(counts, Use::kInstall)) {
    why = Use::kInstall;
  } else if (counts[kRest] > 0.5) {
    why = Use::kQuarantined;
  } else if (any(counts, Use::kEvaluate)) {
    why = Use::kForEvaluation;
  }
  shares[static_cast<size_t>(why)] += 1 - busy;
  return shares;
}

WorkerUse use_of_worker(const WorkerId& id, Known known, std::span<const Cause> causes, Time begin,
                        Time end, int64_t num_bins) {
  WorkerUse use{.worker = id,
                .role = known.role,
                .cluster = known.cluster,
                .host = known.host,
                .slots = known.slots,
                .bins = {}};
  Gatherer gatherer(begin, end, num_bins, use);
  sort_changes(known.changes);
  use.places = places_of(known);
  const auto role = static_cast<size_t>(known.role);
  Counts counts{};
  Use why = Use::kOther;
  auto change = known.changes.begin();
  auto cause = causes.begin();
  if (known.changes.empty()) return use;
  // Nothing is said of the time before it first came.
  for (Time now = known.changes.front().time; now < end;) {
    for (; change != known.changes.end() && change->time <= now; ++change)
      counts[change->counter] += change->by;
    for (; cause != causes.end() && cause->time <= now; ++cause) why = cause->why[role];
    // Between two changes nothing moves: time goes from one to the next, of the worker's own or of
    // the causes.
    Time next = end;
    if (change != known.changes.end()) next = std::min(next, change->time);
    if (cause != causes.end()) next = std::min(next, cause->time);
    gatherer.add(now, next, shares_now(counts, use.places, why));
    now = next;
  }
  return use;
}

}  // namespace

RunUse use_of_workers(std::span<const TimelineRow> rows, Time begin, Time end, int64_t num_bins) {
  TR_CHECK(begin < end && num_bins > 0);
  RunUse use{.begin = begin, .end = end, .workers = {}, .steps = {}};
  const std::vector<Cause> causes = causes_of(rows, end);
  for (auto& [id, known] : workers_of(rows))
    use.workers.push_back(use_of_worker(id, known, causes, begin, end, num_bins));
  // "rollout-10" after "rollout-9".
  std::ranges::sort(use.workers, {}, [](const WorkerUse& worker) {
    return std::tuple(worker.role, worker.worker.size(), worker.worker);
  });
  for (const TimelineRow& row : rows) {
    if (row.what == TimelineWhat::kStep && row.at >= begin && row.at <= end)
      use.steps.emplace_back(row.at, row.number);
    use.folded = use.folded || (is_lease(row.what) && !row.sample);
  }
  return use;
}

UseShares shares_of(const RunUse& use, Role role) {
  UseShares shares{};
  double all = 0;
  for (const WorkerUse& worker : use.workers) {
    if (worker.role != role) continue;
    for (size_t i = 0; i < kNumUses; ++i) {
      const double weight = worker.seconds[i] * static_cast<double>(worker.places);
      shares[i] += weight;
      all += weight;
    }
  }
  for (double& share : shares) share = all > 0 ? share / all : 0;
  return shares;
}

double overlap_of(std::span<const TimelineRow> rows, const RunUse& use) {
  const auto in_window = [&](Time time) { return std::clamp(time, use.begin, use.end); };
  // The steps of a run follow each other.
  std::vector<std::pair<Time, Time>> steps;
  double training = 0, places = 0, generated = 0;
  for (const TimelineRow& row : rows) {
    if (row.what != TimelineWhat::kTrain || in_window(row.from) >= in_window(row.at)) continue;
    steps.emplace_back(in_window(row.from), in_window(row.at));
    training += seconds_of(steps.back().second - steps.back().first);
  }
  for (const WorkerUse& worker : use.workers)
    places += worker.role == Role::kRollout ? static_cast<double>(worker.places) : 0;
  for (const TimelineRow& row : rows) {
    if (row.what != TimelineWhat::kGenerate || row.lane != Lane::kTrain || row.at <= row.from)
      continue;
    const double count =
        row.sample ? 1 : seconds_of(row.busy) / seconds_of(row.at - row.from);  // of a sum the mean
    // Steps are in order and do not overlap, so that a lease looks at the few that it meets.
    const auto first = std::ranges::partition_point(
        steps, [&](const auto& step) { return step.second <= row.from; });
    for (auto step = first; step != steps.end() && step->first < row.at; ++step)
      generated +=
          count * seconds_of(std::min(step->second, row.at) - std::max(step->first, row.from));
  }
  return training > 0 && places > 0 ? std::min(1.0, generated / (training * places)) : 0;
}

}  // namespace tailrace
