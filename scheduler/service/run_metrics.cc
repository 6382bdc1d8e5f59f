#include "scheduler/service/run_metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/group_signal.h"
#include "core/base/time.h"
#include "core/run/stage_row.h"

namespace tailrace::scheduler {
namespace {

// A trainer sends some 50.
constexpr int64_t kMaxUpdateRows = 5000;
// Limit of an install's names, by all workers together. One that makes names up fills no memory.
constexpr int64_t kMaxInstallNames = 32;

bool has(const MetricList& values, std::string_view name) {
  return std::any_of(values.begin(), values.end(),
                     [&](const auto& value) { return value.first == name; });
}

void add_missing(MetricList& values, const MetricList& more) {
  for (const auto& value : more) {
    if (!has(values, value.first)) values.push_back(value);
  }
}

// The mean of each metric over the episodes that report it, as PREFIX/NAME.
MetricList means(std::span<const TrajectoryHeader> episodes, const std::string& prefix) {
  std::map<std::string, std::pair<double, int64_t>> sums;
  for (const TrajectoryHeader& episode : episodes) {
    // Once an episode, and the verifier's word, which is the last: an episode whose environment and
    // verifier both tell of success would else weigh twice beside those of another dataset.
    std::map<std::string, double> last;
    for (const auto& [name, value] : episode.metrics) last[name] = value;
    for (const auto& [name, value] : last) {
      sums[name].first += value;
      ++sums[name].second;
    }
  }
  MetricList values;
  for (const auto& [name, sum] : sums) {
    values.emplace_back(prefix + "/" + name, sum.first / static_cast<double>(sum.second));
  }
  return values;
}

int64_t num_failed(const AttemptCounts& counts) {
  return counts.env_failed + counts.verifier_failed + counts.lost;
}

int64_t num_filtered(const StepStart& start) {
  return std::accumulate(start.filtered.begin(), start.filtered.end(), int64_t{0});
}

// All that the run has found.
int64_t num_broken(const Policy& policy) {
  int64_t sum = 0;
  for (const Dataset& dataset : policy.datasets) sum += dataset.broken.found;
  return sum;
}

// Samples that failed for good, and whose groups are trained without them (law 3.5).
int64_t num_failed_samples(const Policy& policy, const Batch& batch) {
  int64_t sum = 0;
  for (const TaskId& id : batch.tasks) {
    if (const auto task = policy.tasks.find(id); task != policy.tasks.end())
      sum += std::ranges::count(task->second.members, Phase::kFailed, &Member::phase);
  }
  return sum;
}

// The first sample that comes of each of different prompts, with the datasets in turn.
template <class Items>
std::vector<BodyId> choose_samples(Lane lane, const Items& items, int64_t count) {
  std::map<int32_t, std::deque<BodyId>> by_dataset;
  std::set<TaskId> prompts;
  for (const auto& item : items) {
    const MemberId& member = item.lease.member;
    if (prompts.insert(task_of(member)).second)
      by_dataset[member.dataset].push_back({lane, item.lease});
  }
  std::vector<BodyId> chosen;
  while (!by_dataset.empty()) {
    for (auto& [dataset, bodies] : by_dataset) {
      if (std::ssize(chosen) == count) return chosen;
      chosen.push_back(bodies.front());
      bodies.pop_front();
    }
    std::erase_if(by_dataset, [](const auto& entry) { return entry.second.empty(); });
  }
  return chosen;
}

std::vector<TrajectoryHeader> of_dataset(std::span<const TrajectoryHeader> all, size_t dataset) {
  std::vector<TrajectoryHeader> found;
  for (const TrajectoryHeader& one : all) {
    if (static_cast<size_t>(one.lease.member.dataset) == dataset) found.push_back(one);
  }
  return found;
}

// The mean of `value(item)` over the items that have one; nothing where none has.
template <class Items, class Value>
std::optional<double> mean_of(const Items& items, const Value& value) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& item : items) {
    if (const std::optional<double> found = value(item)) {
      sum += *found;
      ++count;
    }
  }
  return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

void add(MetricList& values, std::string name, std::optional<double> value) {
  if (value) values.emplace_back(std::move(name), *value);
}

// The share of the groups with a reward that have no signal.
std::optional<double> zero_signal_share(std::span<const TrajectoryHeader> episodes) {
  std::map<TaskId, GroupSignal> signals;
  for (const TrajectoryHeader& episode : episodes)
    if (episode.reward) signals[task_of(episode.lease.member)].add(*episode.reward, episode.judged);
  return mean_of(signals,
                 [](const auto& group) { return std::optional(group.second.has() ? 0.0 : 1.0); });
}

// Drops a line that a crash or a full disk cut, to which the next row would be glued.
void drop_half_line(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(in.tellg());
  if (!in || size == 0) return;
  in.seekg(size - 1);
  if (in.get() == '\n') return;
  const auto text = read_file(path);
  // Where this fails the row is glued, and the report names its line.
  if (text) std::filesystem::resize_file(path, text.value().rfind('\n') + 1, error);
}

}  // namespace

RunMetrics::RunMetrics(const RunPaths& paths, const Policy& policy, int64_t num_samples,
                       std::vector<std::string> datasets, TokenText text, Log& log,
                       MetricList facts)
    : paths_(paths),
      num_samples_(num_samples),
      datasets_(std::move(datasets)),
      text_(std::move(text)),
      log_(log),
      facts_(std::move(facts)) {
  // Rows of steps beyond the frontier tell of what the journal has forgotten: those steps are
  // trained again, and write them anew.
  open(policy.frontier + 1);
  published_ = policy.frontier;
  evaluates_ = policy.evaluated >= 0;
  warn_of_missing(published_);
}

RunMetrics::~RunMetrics() { keep(); }

// Rows are written before the event that they tell of, so they can only have been lost since: by a
// disk that was full, or by somebody who removed a line or cut the file.
void RunMetrics::warn_of_missing(int64_t published) {
  std::vector<int64_t> missing;
  for (int64_t step = 1; step <= published; ++step) {
    if (!steps_.contains(step)) missing.push_back(step);
  }
  if (missing.empty()) return;
  log_.warning("{} has no rows of {} steps (the first is {}): reports will lack them",
               paths_.metrics().string(), missing.size(), missing.front());
}

void RunMetrics::open(int64_t first_version) {
  writer_.reset();
  auto opened = MetricsWriter::open(paths_.metrics(), first_version, unix_seconds());
  if (!opened) throw UserError("{}", opened.failure().message);
  writer_ = std::move(opened).value();
  read_back();
}

void RunMetrics::read_back() {
  // Not remembered: after a kill the file alone knows.
  auto rows = read_metrics(paths_.metrics());
  if (!rows) throw UserError("{}", rows.failure().message);
  steps_.clear();
  updates_.clear();
  evaluations_.clear();
  const auto refuse = [&](const std::string& what) {
    throw UserError(
        "{}: {}. The run never wrote it so: put its own file back, or remove the lines to go on "
        "without their rows.",
        paths_.metrics().string(), what);
  };
  for (const MetricsRow& row : rows.value()) {
    // Every row of an evaluation has this value, and no row of a step.
    const bool is_evaluation = row.find("eval/episodes") != nullptr;
    if (const std::optional<StageRow> update = stage_row(row)) {
      if (!updates_.emplace(update->stage, row.step).second)
        refuse(fmt::format("two rows are of update {} of stage {}", row.step, update->stage));
      continue;
    }
    std::set<int64_t>& seen = is_evaluation ? evaluations_ : steps_;
    const char* kind = is_evaluation ? "evaluation" : "step";
    // Rows of the others that were lost may be written again behind later ones.
    if (&seen == &steps_ && !seen.empty() && row.step < *seen.rbegin())
      refuse(fmt::format("the row of step {} stands behind that of step {}", row.step,
                         *seen.rbegin()));
    if (!seen.insert(row.step).second) refuse(fmt::format("two rows are of {} {}", kind, row.step));
  }
}

// Before each row, and before it counts as there: one that went to a file without a name would be
// lost without a word.
void RunMetrics::keep() {
  if (!writer_) return;
  const auto kept = writer_->keep();
  const std::string file = paths_.metrics().string();
  if (!kept) {
    log_.warning("{} was replaced, removed or cut while the run writes it: {}", file,
                 kept.failure().message);
  } else if (kept.value() == MetricsWriter::Kept::kPutBack) {
    log_.warning("{} was replaced or removed while the run writes it: its rows are put back", file);
  } else if (kept.value() == MetricsWriter::Kept::kCut) {
    log_.warning("{} was cut while the run writes it", file);
    try {
      read_back();
      warn_of_missing(published_);
    } catch (const UserError& error) {
      log_.warning("{}", error.what());
    }
  }
}

void RunMetrics::write(int64_t step, int64_t version, MetricList values) {
  auto written = writer_->write({step, version, unix_seconds(), std::move(values)});
  // A run is worth more than a row.
  if (!written)
    log_.warning("the metrics of step {} are lost: {}", step, written.failure().message);
}

std::vector<BodyId> RunMetrics::samples_of_batch(const HandOver& batch) const {
  // Without evaluations the first and every tenth batch show what the policy writes.
  const bool is_tenth = (batch.step - 1) % 10 == 0;
  if (evaluates_ || !evaluations_.empty() || !is_tenth || steps_.contains(batch.step)) return {};
  return choose_samples(Lane::kTrain, batch.items, num_samples_);
}

std::vector<BodyId> RunMetrics::samples_of_evaluation(const EvalDone& report) const {
  if (evaluations_.contains(report.version)) return {};
  std::vector<EvalDone::Item> rewarded;
  for (const EvalDone::Item& item : report.items) {
    if (item.reward) rewarded.push_back(item);
  }
  return choose_samples(Lane::kEval, rewarded, num_samples_);
}

void RunMetrics::write_samples(int64_t step, int64_t version,
                               std::span<const Trajectory> trajectories) {
  if (trajectories.empty()) return;
  std::string lines;
  for (const Trajectory& trajectory : trajectories) {
    SampleRow row = sample_row(trajectory, step, version);
    if (!datasets_.empty())
      row.dataset = datasets_.at(static_cast<size_t>(trajectory.lease.member.dataset));
    for (size_t i = 0; text_ && i < row.segments.size(); ++i)
      row.segments[i].text = segment_text(row, i, text_);
    lines += format_sample_row(row) + "\n";
  }
  drop_half_line(paths_.samples());
  auto file = AppendFile::open(paths_.samples());
  const Result<void> written = file ? file.value().append(lines) : Result<void>(file.failure());
  if (!written)
    log_.warning("the samples of step {} are lost: {}", step, written.failure().message);
}

void RunMetrics::on_batch(int64_t step, std::span<const TrajectoryHeader> batch) {
  pending_ = {.step = step, .tokens = 0, .values = means(batch, "env")};
  double staleness = 0, stalest = 0;
  for (const TrajectoryHeader& episode : batch) {
    pending_.tokens += episode.num_sampled;
    // Against the weights that the step starts from (law 4.1); -1: nothing was sampled.
    const int64_t oldest = episode.min_version;
    const double age = oldest < 0 ? 0 : static_cast<double>(step - 1 - oldest);
    staleness += age;
    stalest = std::max(stalest, age);
  }
  pending_.values.emplace_back("staleness/mean",
                               batch.empty() ? 0 : staleness / static_cast<double>(batch.size()));
  pending_.values.emplace_back("staleness/max", stalest);
  add_missing(pending_.values, batch_by_dataset(batch));
}

MetricList RunMetrics::batch_by_dataset(std::span<const TrajectoryHeader> batch) const {
  MetricList values;
  for (size_t dataset = 0; dataset < datasets_.size(); ++dataset) {
    const std::string& name = datasets_[dataset];
    const std::vector<TrajectoryHeader> episodes = of_dataset(batch, dataset);
    const auto put = [&](std::string_view section, std::string_view what, auto value) {
      add(values, fmt::format("{}/{}/{}", section, name, what), value);
    };
    put("reward", "mean", mean_of(episodes, [](const auto& one) { return one.reward; }));
    put("rollout", "zero_signal_frac", zero_signal_share(episodes));
    put("rollout", "response_tokens/mean", mean_of(episodes, [](const auto& one) {
          return std::optional(static_cast<double>(one.num_sampled));
        }));
    put("rollout", "truncated_frac", mean_of(episodes, [](const auto& one) {
          return std::optional(one.outcome == Outcome::kTruncated ? 1.0 : 0.0);
        }));
    add_missing(values, means(episodes, "env/" + name));
  }
  return values;
}

// The fate of the prompts that ended with the step, by dataset: those of its batch, and those that
// were given up since the row before. Such tasks are there until the oldest checkpoint covers the
// step, which has only now been trained.
MetricList RunMetrics::prompts_by_dataset(const Policy& policy, const Batch& batch) const {
  std::vector<std::map<TaskEnd, int64_t>> ended(datasets_.size());
  for (const auto& [id, task] : policy.tasks) {
    const auto dataset = static_cast<size_t>(id.dataset);
    if (dataset < ended.size() && task.place == Place::kDone && task.step == policy.published)
      ++ended[dataset][task.end];
  }
  MetricList values;
  for (size_t dataset = 0; dataset < datasets_.size(); ++dataset) {
    const auto put = [&](std::string_view what, int64_t count) {
      values.emplace_back(fmt::format("rollout/{}/{}", datasets_[dataset], what),
                          static_cast<double>(count));
    };
    put("prompts", batch.datasets.at(dataset));
    put("filtered_prompts", ended[dataset][TaskEnd::kFiltered]);
    put("failed_prompts", ended[dataset][TaskEnd::kFailed]);
    put("stale_prompts", ended[dataset][TaskEnd::kStale]);
    put("broken_tasks", policy.datasets.at(dataset).broken.found);
  }
  return values;
}

void RunMetrics::on_install(const MetricList& measured) {
  for (const auto& [name, value] : measured) {
    if (!std::isfinite(value)) continue;
    auto at = installs_.find(name);
    if (at == installs_.end()) {
      if (std::ssize(installs_) == kMaxInstallNames) continue;
      at = installs_.emplace(name, 0).first;
    }
    // Workers install at the same time, so times do not add up: the slowest counts. Bytes do.
    at->second = name.ends_with("_ms") ? std::max(at->second, value) : at->second + value;
  }
}

void RunMetrics::on_published(const Policy& policy, const StepStart& start,
                              const MetricList& sent) {
  const int64_t version = policy.published;
  evaluates_ = policy.evaluated >= 0;
  keep();
  published_ = version;
  const auto batch = policy.batches.find(version);
  // The first publication comes of no step, whatever its number. A step that is trained again, or
  // whose row was written before a kill, has its row.
  if (batch == policy.batches.end() || !steps_.insert(version).second) return;

  // Taken behind the return above: a step without a row of its own leaves them to the next row.
  const auto installs = std::exchange(installs_, {});
  const StepStart& end = policy.step_start;
  MetricList values = sent;
  if (pending_.step == version) {
    add_missing(values, pending_.values);
    const double seconds = seconds_of(end.time - start.time);
    if (seconds > 0) {
      add_missing(values, {{"perf/tokens_per_s", static_cast<double>(pending_.tokens) / seconds},
                           {"time/step", seconds},
                           {"time/rollout", seconds_of(batch->second.handed - start.time)}});
    }
  }
  const auto samples = static_cast<double>(end.attempts.samples - start.attempts.samples);
  const auto discarded = static_cast<double>(end.attempts.discarded - start.attempts.discarded);
  const auto failed = static_cast<double>(num_failed(end.attempts) - num_failed(start.attempts));
  const auto all = failed + samples;
  add_missing(
      values,
      {{"rollout/infra_failed_frac", all > 0 ? failed / all : 0},
       {"rollout/discarded_frac", samples > 0 ? discarded / samples : 0},
       {"rollout/resumed_tokens",
        static_cast<double>(end.attempts.resumed_tokens - start.attempts.resumed_tokens)},
       {"rollout/filtered_prompts", static_cast<double>(num_filtered(end) - num_filtered(start))},
       {"rollout/failed_prompts", static_cast<double>(end.failed - start.failed)},
       {"rollout/failed_samples", static_cast<double>(num_failed_samples(policy, batch->second))},
       {"rollout/stale_prompts", static_cast<double>(end.stale - start.stale)},
       {"rollout/broken_tasks", static_cast<double>(num_broken(policy))}});
  add_missing(values, facts_);
  add_missing(values, prompts_by_dataset(policy, batch->second));
  for (const auto& [name, value] : installs) add_missing(values, {{"weights/" + name, value}});
  write(version, version - 1, std::move(values));
}

bool RunMetrics::on_progress(const wire::Progress& progress) {
  keep();
  if (std::ranges::find(kRowStages, progress.phase) == std::end(kRowStages)) return false;
  const std::pair update(progress.stage, progress.done);
  if (updates_.contains(update)) return true;
  if (std::ssize(updates_) == kMaxUpdateRows) return false;
  updates_.insert(update);
  MetricList values = progress.metrics;
  // The file alone then tells which rows of a training it lacks: nobody sends them again.
  add_missing(values, {{updates_metric(progress.phase), static_cast<double>(progress.total)}});
  if (progress.stage > 1)
    add_missing(values, {{std::string(kStageNumber), static_cast<double>(progress.stage)}});
  write(progress.done, -1, std::move(values));
  return true;
}

void RunMetrics::on_evaluation(const EvalDone& report, std::span<const TrajectoryHeader> bodies) {
  keep();
  if (!evaluations_.insert(report.version).second) return;
  double sum = 0, rewarded = 0;
  for (const EvalDone::Item& item : report.items) {
    if (!item.reward) continue;
    sum += *item.reward;
    ++rewarded;
  }
  const double episodes = static_cast<double>(report.items.size());
  MetricList values;
  if (rewarded > 0) values.emplace_back("eval/reward", sum / rewarded);
  if (!bodies.empty()) {
    double tokens = 0, turns = 0;
    for (const TrajectoryHeader& body : bodies) {
      tokens += static_cast<double>(body.num_sampled);
      turns += body.turns;
    }
    values.emplace_back("eval/response_tokens/mean", tokens / static_cast<double>(bodies.size()));
    values.emplace_back("eval/turns/mean", turns / static_cast<double>(bodies.size()));
  }
  values.emplace_back("eval/episodes", episodes);
  // Beside the mean, never inside it: a failure is no reward of 0.
  values.emplace_back("eval/failed", episodes - rewarded);
  add_missing(values, evaluation_by_dataset(report, bodies));
  // Last: an environment cannot replace what is counted here.
  add_missing(values, means(bodies, "eval"));
  write(report.version, report.version, std::move(values));
}

MetricList RunMetrics::evaluation_by_dataset(const EvalDone& report,
                                             std::span<const TrajectoryHeader> bodies) const {
  MetricList values;
  for (size_t dataset = 0; dataset < datasets_.size(); ++dataset) {
    const std::string section = "eval/" + datasets_[dataset];
    std::vector<EvalDone::Item> items;
    std::ranges::copy_if(report.items, std::back_inserter(items), [&](const auto& item) {
      return static_cast<size_t>(item.lease.member.dataset) == dataset;
    });
    const auto failed =
        std::ranges::count_if(items, [](const auto& item) { return !item.reward.has_value(); });
    add(values, section + "/reward", mean_of(items, [](const auto& item) { return item.reward; }));
    values.emplace_back(section + "/episodes", static_cast<double>(items.size()));
    values.emplace_back(section + "/failed", static_cast<double>(failed));
    add_missing(values, means(of_dataset(bodies, dataset), section));
  }
  return values;
}

void RunMetrics::on_fork(int64_t from) {
  keep();
  published_ = from;
  // A run goes on without its rows; only its start insists on them.
  try {
    open(from);
  } catch (const UserError& error) {
    log_.warning("metrics of the abandoned weights stay: {}", error.what());
  }
}

}  // namespace tailrace::scheduler
