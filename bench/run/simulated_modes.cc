#include "bench/run/simulated_modes.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "bench/report/minimum.h"
#include "bench/report/program.h"
#include "bench/run/mode_run.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "cli/prepare/setup.h"
#include "cli/simulate/recorded_episodes.h"
#include "cli/simulate/simulation.h"
#include "core/base/error.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
constexpr double kForever = 1e7;  // seconds: no run of the bench is longer

std::vector<TimelineRow> timeline_of(const fs::path& run) {
  auto file = read_timeline(RunPaths{run}.timeline());
  if (!file) throw UserError("{}", file.failure().message);
  if (file.value().num_damaged > 0 || file.value().skipped_bytes > 0 || file.value().rows.empty())
    throw UserError("{}: the timeline is not whole; make the runs anew",
                    RunPaths{run}.timeline().string());
  return std::move(file.value().rows);
}

ResolvedRun resolved_of(const fs::path& run) {
  return load_stored_run(RunPaths{run}, {}, built_in_registries()).run;
}

// A lease of a sample for training.
bool is_of_sample(const TimelineRow& row) {
  return row.what == TimelineWhat::kGenerate && row.lane == Lane::kTrain && row.sample;
}

// By turns, then by how long the environment takes: where all have as many turns, that differs.
std::pair<size_t, double> length_of(const simulator::Episode& episode) {
  double seconds = 0;
  for (const simulator::Turn& turn : episode.turns) seconds += turn.env_seconds;
  return {episode.turns.size(), seconds};
}

// y = a + b * x by least squares, neither below 0.
std::pair<double, double> line_through(const std::vector<std::pair<double, double>>& points) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [px, py] : points) n += 1, x += px, y += py, xx += px * px, xy += px * py;
  const double spread = n * xx - x * x;
  const double slope = spread > 0 ? std::max(0.0, (n * xy - x * y) / spread) : 0;
  const double offset = (y - slope * x) / std::max(n, 1.0);
  if (offset >= 0) return {offset, slope};
  return {0, xx > 0 ? xy / xx : 0};
}

double median_of(std::vector<double> values) {
  return values.empty() ? 0 : spread(std::move(values)).median;
}

std::map<MemberId, double> spans_of_samples(const std::vector<TimelineRow>& rows) {
  std::map<MemberId, double> spans;
  for (const TimelineRow& row : rows) {
    if (is_of_sample(row) && (row.end == "finished" || row.end == "truncated"))
      spans[row.sample->lease.member] = seconds_of(row.at - row.from);
  }
  return spans;
}

void fit_training(const std::vector<TimelineRow>& rows, simulator::Cluster& cluster,
                  const simulator::EpisodeSource& episodes) {
  // Tokens of each step: of the samples that ended since the one before it, which `sync` trains.
  std::vector<std::pair<double, double>> points;
  std::vector<double> staged, switched;
  double tokens = 0;
  for (const TimelineRow& row : rows) {
    if (is_of_sample(row)) {
      const simulator::Episode episode = episodes.draw(row.lane, row.sample->lease.member, 1);
      tokens += static_cast<double>(episode.context());
    } else if (row.what == TimelineWhat::kTrain) {
      points.emplace_back(tokens, seconds_of(row.at - row.from));
      tokens = 0;
    } else if (row.what == TimelineWhat::kInstall && row.number > 0) {
      (row.end == "staged" ? staged : switched).push_back(seconds_of(row.at - row.from));
    }
  }
  const auto [step, token] = line_through(points);
  cluster.trainer.step = step;
  cluster.trainer.token = token;
  for (simulator::PoolModel& pool : cluster.pools) {
    pool.transfer.fetch = median_of(staged);
    pool.transfer.switch_over = median_of(switched);
  }
}

}  // namespace

std::unique_ptr<simulator::EpisodeSource> forced_episodes(const std::vector<fs::path>& runs) {
  std::map<MemberId, RecordedEpisode> all;
  for (const fs::path& run : runs) {
    std::vector<std::string> notes;
    all.merge(read_recorded_episodes(run, &notes));
    if (!notes.empty()) throw UserError("{}: {}; make the runs anew", run.string(), notes.front());
  }
  std::vector<simulator::ReplayedEpisodes::Record> records;
  simulator::Episode longest;
  for (const auto& [member, recorded] : all) {
    if (recorded.turns.empty()) continue;
    records.push_back({.member = member, .episode = episode_of(recorded)});
    if (length_of(records.back().episode) > length_of(longest)) longest = records.back().episode;
  }
  for (const fs::path& run : runs)
    for (const TimelineRow& row : timeline_of(run))
      if (is_of_sample(row) && all.try_emplace(row.sample->lease.member).second)
        records.push_back({.member = row.sample->lease.member, .episode = longest});
  return std::make_unique<simulator::ReplayedEpisodes>(std::move(records), /*seed=*/1);
}

simulator::Cluster fit_cluster(const fs::path& sync_run, const simulator::EpisodeSource& episodes) {
  const ResolvedRun run = resolved_of(sync_run);
  const scheduler::Config law = scheduler_config(run);
  const std::vector<TimelineRow> rows = timeline_of(sync_run);
  const std::map<MemberId, double> spans = spans_of_samples(rows);
  simulator::Cluster cluster = cluster_of(run);
  fit_training(rows, cluster, episodes);
  double mean = 0;
  for (const auto& [member, span] : spans) mean += span / static_cast<double>(spans.size());
  // By the logarithms of three times.
  const auto apply = [&](const std::vector<double>& p) {
    for (simulator::PoolModel& pool : cluster.pools)
      pool.hardware.decode = {.step = std::exp(p[0]), .sequence = std::exp(p[1])};
    cluster.episode_overhead = std::exp(p[2]);
  };
  const auto error_of = [&](const std::vector<double>& p) {
    apply(p);
    simulator::World world(law, cluster, episodes, 1);
    double squares = 0;
    size_t found = 0;
    world.on_sample = [&](const simulator::Sample& sample) {
      const auto span = spans.find(sample.member);
      if (span == spans.end()) return;
      const double difference = sample.ended - sample.begun - span->second;
      squares += difference * difference;
      ++found;
    };
    world.run(kForever);
    // Of a world so slow that its samples do not end in time there is nothing to compare.
    if (found < spans.size()) return 1e9 * static_cast<double>(spans.size() - found);
    return std::sqrt(squares / static_cast<double>(std::max<size_t>(1, spans.size()))) / mean;
  };
  apply(minimise({std::log(1e-3), std::log(1e-4), std::log(1e-3)}, std::log(4), 200, error_of));
  return cluster;
}

simulator::RunSummary predict_run(const fs::path& run, const simulator::Cluster& cluster,
                                  const simulator::EpisodeSource& episodes) {
  simulator::World world(scheduler_config(resolved_of(run)), cluster, episodes, 1);
  const auto stop = world.run(kForever);
  require(stop == simulator::World::Stop::kEnded, "the simulated run of {} does not end: {}{}",
          run.string(),
          stop == simulator::World::Stop::kHalted ? "it halts: " : "nothing more happens",
          world.state().halted);
  return simulator::summary_of(world.steps());
}

namespace {

// WORKLOAD-MODE-SEED, as the bench names its runs; neither workloads nor modes have a '-'.
struct Named {
  std::string workload, mode, seed;
};

std::optional<Named> name_of_run(const std::string& name) {
  const size_t first = name.find('-'), last = name.rfind('-');
  if (first == std::string::npos || first == last) return std::nullopt;
  return Named{name.substr(0, first), name.substr(first + 1, last - first - 1),
               name.substr(last + 1)};
}

}  // namespace

ModesVerdict compare_modes(const fs::path& folder, double bound, int64_t seeds, Report& report) {
  // By workload and seed, then by mode.
  std::map<std::pair<std::string, std::string>, std::map<std::string, fs::path>> all;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    if (!entry.is_directory()) continue;
    if (const auto named = name_of_run(entry.path().filename().string()))
      all[{named->workload, named->seed}][named->mode] = entry.path();
  }
  std::map<std::string, int64_t> seeds_of;
  for (const auto& [key, runs] : all) {
    if (runs.size() < 2 || !runs.contains("sync")) {
      throw UserError("{}: of {}, seed {}, there must be runs of sync and of another mode",
                      folder.string(), key.first, key.second);
    }
    ++seeds_of[key.first];
  }
  for (const auto& [workload, count] : seeds_of) {
    if (count < seeds)
      throw UserError("{}: {} has {} seeds, and {} are compared; run bench modes --runs {}",
                      folder.string(), workload, count, seeds, seeds);
  }
  if (all.empty())
    throw UserError("{} has no runs; make them by bench modes --runs {} --out {}", folder.string(),
                    seeds, folder.string());
  struct Pairs {
    std::vector<double> seconds, predicted, ratio, staleness, predicted_staleness, staleness_ratio;
  };
  std::map<std::pair<std::string, std::string>, Pairs> pairs;  // by workload and mode
  for (const auto& [key, runs] : all) {
    std::vector<fs::path> paths;
    for (const auto& [mode, path] : runs) paths.push_back(path);
    const auto episodes = forced_episodes(paths);
    const simulator::Cluster cluster = fit_cluster(runs.at("sync"), *episodes);
    for (const auto& [mode, path] : runs) {
      const RunOptions options = resolved_of(path).options;
      const ModeRun measured = read_mode_run(
          path, options.run.steps, options.step.prompts_per_step * options.step.group_size);
      const simulator::RunSummary predicted = predict_run(path, cluster, *episodes);
      Pairs& pair = pairs[{key.first, mode}];
      pair.seconds.push_back(measured.seconds);
      pair.predicted.push_back(predicted.seconds);
      pair.ratio.push_back(predicted.seconds / measured.seconds);
      pair.staleness.push_back(measured.staleness_mean);
      pair.predicted_staleness.push_back(predicted.staleness_mean);
      // On-policy: there is nothing to miss but a sample that is not.
      const bool both_none = measured.staleness_mean == 0 && predicted.staleness_mean == 0;
      pair.staleness_ratio.push_back(
          both_none ? 1 : predicted.staleness_mean / measured.staleness_mean);
    }
  }
  ModesVerdict verdict;
  for (const auto& [key, pair] : pairs) {
    const std::string name = key.first + ", " + key.second;
    report.add(name, "measured", "s", pair.seconds);
    report.add(name, "predicted", "s", pair.predicted);
    report.add(name, "predicted to measured", "x", pair.ratio);
    report.add(name, "staleness", "versions", pair.staleness);
    report.add(name, "predicted staleness", "versions", pair.predicted_staleness);
    report.add(name, "staleness, predicted to measured", "x", pair.staleness_ratio);
    if (key.second == "sync") continue;  // it was fitted
    ++verdict.judged;
    const auto judge = [&](const std::vector<double>& ratios, std::string_view of) {
      const double ratio = median_of(ratios);
      const bool within = std::abs(ratio - 1) <= bound;
      if (!within) verdict.misses.push_back(fmt::format("{}: {:.2f} of {}", name, ratio, of));
      return within;
    };
    const bool seconds = judge(pair.ratio, "the measured seconds");
    const bool staleness = judge(pair.staleness_ratio, "the measured staleness");
    verdict.within += seconds && staleness ? 1 : 0;
  }
  return verdict;
}

}  // namespace tailrace
