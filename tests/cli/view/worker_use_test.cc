#include "cli/view/worker_use.h"

#include <numeric>

#include <gtest/gtest.h>

#include "cli/view/worker_chart.h"

namespace tailrace {
namespace {

using enum TimelineWhat;

Time s(int64_t count) { return std::chrono::seconds(count); }

TimelineRow up(int64_t at, const WorkerId& worker, Role role, int64_t slots) {
  return {.what = kUp, .at = s(at), .from = s(at), .worker = worker, .role = role, .slots = slots};
}
TimelineRow span(TimelineWhat what, int64_t from, int64_t at, const WorkerId& worker,
                 int64_t number = 0) {
  return {
      .what = what, .at = s(at), .from = s(from), .worker = worker, .end = "", .number = number};
}
TimelineRow lease(TimelineWhat what, int64_t from, int64_t at, const WorkerId& worker,
                  Lane lane = Lane::kTrain) {
  TimelineRow row = span(what, from, at, worker);
  row.sample = BodyId{lane, {{.prompt = from}, 1}};
  row.lane = lane;
  row.busy = row.at - row.from;
  return row;
}

// A step of a run in mode sync: samples until 10 (r-1) and 14 (r-0), one verification, the trainer
// from 16 to 20, installs until 21.
std::vector<TimelineRow> one_step() {
  return {up(0, "t", Role::kTrainer, 1),   up(0, "r-0", Role::kRollout, 2),
          up(0, "r-1", Role::kRollout, 2), up(0, "v", Role::kReward, 1),
          span(kWarmUp, 0, 2, "t", -1),    span(kInstall, 2, 3, "r-0"),
          span(kInstall, 2, 4, "r-1"),     lease(kGenerate, 4, 10, "r-1"),
          lease(kGenerate, 4, 10, "r-1"),  lease(kGenerate, 4, 12, "r-0"),
          lease(kGenerate, 4, 14, "r-0"),  lease(kVerify, 14, 16, "v"),
          span(kTrain, 16, 20, "t", 1),    {.what = kStep, .at = s(20), .from = s(20), .number = 1},
          span(kInstall, 20, 21, "r-1"),   span(kInstall, 20, 22, "r-0")};
}

const WorkerUse& worker(const RunUse& use, const WorkerId& id) {
  for (const WorkerUse& found : use.workers)
    if (found.worker == id) return found;
  ADD_FAILURE() << id;
  return use.workers.front();
}
double spent(const WorkerUse& worker, Use use) { return worker.seconds[static_cast<size_t>(use)]; }

TEST(WorkerUse, IdleTimeIsForWhatTheOthersDo) {
  const RunUse use = use_of_workers(one_step(), s(0), s(22), 11);
  ASSERT_EQ(use.workers.size(), 4u);
  EXPECT_EQ(use.workers[0].worker, "r-0");
  EXPECT_EQ(use.workers[3].worker, "t");
  using enum Use;
  const WorkerUse& fast = worker(use, "r-1");
  EXPECT_DOUBLE_EQ(spent(fast, kForWeights), 2);
  EXPECT_DOUBLE_EQ(spent(fast, kInstall), 2 + 1);
  EXPECT_DOUBLE_EQ(spent(fast, kGenerate), 6);
  EXPECT_DOUBLE_EQ(spent(fast, kForSamples), 4) << "the tail of r-0";
  EXPECT_DOUBLE_EQ(spent(fast, kForVerification), 2);
  EXPECT_DOUBLE_EQ(spent(fast, kForTraining), 4);
  EXPECT_DOUBLE_EQ(spent(fast, kForInstall), 1);
  const WorkerUse& slow = worker(use, "r-0");
  EXPECT_DOUBLE_EQ(spent(slow, kGenerate), 8 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(spent(slow, kForSamples), 2 * 0.5) << "one of its two slots";
  const WorkerUse& trainer = worker(use, "t");
  EXPECT_DOUBLE_EQ(spent(trainer, kWarmUp), 2);
  EXPECT_DOUBLE_EQ(spent(trainer, kForSamples), 10);
  EXPECT_DOUBLE_EQ(spent(trainer, kForVerification), 2);
  EXPECT_DOUBLE_EQ(spent(trainer, kTrain), 4);
  EXPECT_DOUBLE_EQ(spent(worker(use, "v"), kVerify), 2);
  for (const WorkerUse& each : use.workers) {
    EXPECT_NEAR(std::accumulate(each.seconds.begin(), each.seconds.end(), 0.0), 22, 1e-9)
        << each.worker;
    for (const UseShares& bin : each.bins)
      EXPECT_NEAR(std::accumulate(bin.begin(), bin.end(), 0.0), 1, 1e-9) << each.worker;
  }
  const UseShares all = shares_of(use, Role::kRollout);
  EXPECT_NEAR(all[static_cast<size_t>(kGenerate)], (6 + 9) / 44.0, 1e-9);
}

TEST(WorkerUse, AStepThatWaitsForACheckpointIsNotTrainedMeanwhile) {
  const std::vector<TimelineRow> rows = {
      up(0, "t", Role::kTrainer, 1), up(0, "r", Role::kRollout, 1), span(kWarmUp, 0, 1, "t", -1),
      span(kSave, 1, 4, "t", 1), span(kTrain, 2, 6, "t", 2)};
  const RunUse use = use_of_workers(rows, s(0), s(6), 3);
  EXPECT_DOUBLE_EQ(spent(worker(use, "t"), Use::kSave), 3);
  EXPECT_DOUBLE_EQ(spent(worker(use, "t"), Use::kTrain), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), Use::kForCheckpoint), 3);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), Use::kForTraining), 2);
}

TEST(WorkerUse, AWindowCutsSpans) {
  const RunUse use = use_of_workers(one_step(), s(9), s(11), 2);
  using enum Use;
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-1"), kGenerate), 1);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-1"), kForSamples), 1);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-0"), kGenerate), 2);
  EXPECT_DOUBLE_EQ(worker(use, "r-1").bins[0][static_cast<size_t>(kGenerate)], 1);
  EXPECT_DOUBLE_EQ(worker(use, "r-1").bins[1][static_cast<size_t>(kForSamples)], 1);
}

TEST(WorkerUse, OverlapIsTheShareOfPlacesThatGeneratedWhileAStepWasTrained) {
  std::vector<TimelineRow> rows = one_step();
  const auto overlap = [&](int64_t begin, int64_t end) {
    return overlap_of(rows, use_of_workers(rows, s(begin), s(end), 1));
  };
  EXPECT_EQ(overlap(0, 22), 0) << "in mode sync";
  rows.push_back(lease(kGenerate, 14, 17, "r-1"));  // one second of four
  rows.push_back(lease(kGenerate, 15, 25, "r-0"));  // all four
  rows.push_back(lease(kGenerate, 16, 20, "r-0", Lane::kEval));
  EXPECT_DOUBLE_EQ(overlap(0, 22), (1 + 4) / (4 * 4.0));
  EXPECT_DOUBLE_EQ(overlap(0, 18), (1 + 2) / (4 * 2.0)) << "in the window";
  EXPECT_EQ(overlap(0, 15), 0) << "no step";
  TimelineRow sum = lease(kGenerate, 16, 20, "r-1");
  sum.sample.reset();
  sum.busy = s(2);
  rows.push_back(sum);
  EXPECT_DOUBLE_EQ(overlap(0, 22), (1 + 4 + 2) / (4 * 4.0));
}

TEST(WorkerUse, AnEvaluationKeepsItsOwnWorkerAlone) {
  std::vector<TimelineRow> rows = {up(0, "r-0", Role::kRollout, 2), up(0, "r-1", Role::kRollout, 2),
                                   span(kWarmUp, 0, 1, "t", -1)};
  for (const char* name : {"r-0", "r-0", "r-1", "r-1"})
    rows.push_back(lease(kGenerate, 1, 2, name));
  rows.push_back(lease(kGenerate, 2, 6, "r-0", Lane::kEval));
  rows.push_back(span(kTrain, 2, 4, "t", 1));
  const RunUse use = use_of_workers(rows, s(0), s(6), 1);
  using enum Use;
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-0"), kEvaluate), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-0"), kForEvaluation), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-1"), kForTraining), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r-1"), kForEvaluation), 2) << "nothing else goes on";
}

TEST(WorkerUse, AbsencesQuarantinesAndSumsOfLeasesCount) {
  std::vector<TimelineRow> rows = {up(0, "r", Role::kRollout, 4), span(kWarmUp, 0, 1, "t", -1)};
  for (int i = 0; i < 4; ++i) rows.push_back(lease(kGenerate, 1, 2, "r"));
  TimelineRow sum = span(kGenerate, 2, 6, "r");
  sum.leases = 7;
  sum.busy = s(8);
  rows.push_back(sum);
  rows.push_back({.what = kQuarantine, .at = s(6), .from = s(6), .worker = "r", .until = s(9)});
  rows.push_back({.what = kDown, .at = s(8), .from = s(8), .worker = "r", .end = "away"});
  rows.push_back(up(10, "r", Role::kRollout, 4));
  rows.push_back({.what = kStep, .at = s(12), .from = s(12), .number = 1});
  const RunUse use = use_of_workers(rows, s(0), s(12), 4);
  using enum Use;
  EXPECT_TRUE(use.folded);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), kGenerate), 1 + 2) << "8 of 16 seconds of a place";
  EXPECT_EQ(worker(use, "r").places, 4);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), kForSamples), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), kQuarantined), 2);
  EXPECT_DOUBLE_EQ(spent(worker(use, "r"), kAway), 2);
  ASSERT_EQ(use.steps.size(), 1u);
}

TEST(WorkerSection, HasAColumnOfPlacesWhereOneIsKnown) {
  std::vector<TimelineRow> rows = one_step();
  EXPECT_EQ(worker_section(rows).find("<th>where</th>"), std::string::npos);
  TimelineRow far = up(22, "r-2", Role::kRollout, 1);
  far.cluster = "west";
  rows.push_back(far);
  far.host = "gpu<7>";
  rows.push_back(far);
  const std::string section = worker_section(rows);
  for (const char* part :
       {"<tr><th>worker</th><th>where</th><th>slots</th>",
        "<tr><td>all rollout (3)</td><td></td><td>5</td>", "<tr><td>r-0</td><td></td><td>2</td>",
        "<tr><td>r-2</td><td>west, gpu&lt;7&gt;</td><td>1</td>"})
    EXPECT_NE(section.find(part), std::string::npos) << part << "\n" << section;
}

TEST(WorkerSection, ShowsEveryWorkerAndNothingFromOutside) {
  std::vector<TimelineRow> rows = one_step();
  rows.push_back(up(22, "r<2>", Role::kRollout, 1));
  const std::string section = worker_section(rows);
  for (const char* part : {"<h2>Workers</h2>", ">r-0</text>", "r&lt;2&gt;", "all rollout (3)",
                           "waits for samples", "waits for the trainer", "class=\"u3\""})
    EXPECT_NE(section.find(part), std::string::npos) << part;
  // Of each role, at first sight.
  EXPECT_NE(section.find(" idle</b><span>trainer, mostly waits for samples ("), std::string::npos)
      << section;
  EXPECT_EQ(section.find("http://", section.find("http://www.w3.org") + 40) == std::string::npos
                ? std::string::npos
                : section.find("src="),
            std::string::npos);
  EXPECT_EQ(section, worker_section(rows));
  EXPECT_EQ(worker_section({}), "");
}

}  // namespace
}  // namespace tailrace
