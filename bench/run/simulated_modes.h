// Runs of `bench modes` against the simulator: a cluster is fitted on the run of `sync` alone, and
// the runs of the other modes of the same workload and seed are predicted.
//
// What is taken from all runs are the episodes themselves: they are forced, so that a sample is the
// same in every mode (forced_samples.h). What is fitted on `sync`, from its timeline:
//
//   decode    seconds of a step, seconds a sequence adds to it, and seconds that an episode takes
//             besides (dispatch, storing): least squares on the spans of its samples, with the
//             simulator itself as the model
//   training  seconds a step takes and seconds a token adds: least squares on its train spans
//   installs  medians of staging and of switching
//
// A sample that was begun and that no run finished was given up as too long: it is as long as the
// longest that was seen. One that no run began is drawn from those of its prompt.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/report/report.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/summary.h"
#include "scheduler/simulator/world.h"

namespace tailrace {

// The episodes of all runs in these folders, for the simulator. Throws UserError for a run that
// cannot be read whole.
std::unique_ptr<simulator::EpisodeSource> forced_episodes(
    const std::vector<std::filesystem::path>& runs);

// Throws UserError for a run that cannot be read.
simulator::Cluster fit_cluster(const std::filesystem::path& sync_run,
                               const simulator::EpisodeSource& episodes);

// By the run's own config.yaml. Throws UserError; WrongResult when the simulated run does not end.
simulator::RunSummary predict_run(const std::filesystem::path& run,
                                  const simulator::Cluster& cluster,
                                  const simulator::EpisodeSource& episodes);

// How many modes were judged, and which ratios are not within the bound.
struct ModesVerdict {
  int64_t judged = 0, within = 0;
  std::vector<std::string> misses;  // "length_tailed, async_2: 0.85 of the measured seconds"
};

// The rows of a comparison of all runs in `folder`, which `bench modes --out FOLDER` has made: for
// each workload and mode measured and predicted seconds and staleness, and the medians of their
// ratios by seed. A mode is within `bound` when both medians are; `sync`, which was fitted, is not
// judged. Throws UserError for a folder with fewer than so many seeds of a workload, or whose runs
// cannot be read.
ModesVerdict compare_modes(const std::filesystem::path& folder, double bound, int64_t seeds,
                           Report& report);

}  // namespace tailrace
