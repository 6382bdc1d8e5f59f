// What the simulated experiments stand on: fits that find what they look for, lengths with the mean
// that was asked for, runs that are refused unless they are whole, and what a bound means.
#include <cmath>

#include <gtest/gtest.h>

#include "bench/report/minimum.h"
#include "bench/report/program.h"
#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

TEST(SimulateCell, IsWithinItsBoundAndNotBeyond) {
  const auto within = [](double published, double simulated, Bound bound) {
    Cell cell;
    cell.published = published;
    cell.simulated = simulated;
    cell.bound = bound;
    return cell.within();
  };
  EXPECT_TRUE(within(4, 4, Bound::kExact));
  EXPECT_FALSE(within(4, 4.01, Bound::kExact));
  EXPECT_TRUE(within(100, 109, Bound::kTenPercent));
  EXPECT_FALSE(within(100, 111, Bound::kTenPercent));
  EXPECT_TRUE(within(100, 81, Bound::kTwentyPercent));
  EXPECT_FALSE(within(100, 79, Bound::kTwentyPercent));
  EXPECT_TRUE(within(1.59, 3, Bound::kOrder));
  EXPECT_FALSE(within(1.59, 0.9, Bound::kOrder));
}

TEST(SimulateFit, SolveFindsThePointOfRisingAndFallingFunctions) {
  EXPECT_NEAR(solve(50, 1, [](double x) { return 2 * x * x; }), 5, 0.05);
  EXPECT_NEAR(solve(0.1, 1, [](double x) { return 3 / x; }), 30, 0.3);
  EXPECT_NEAR(solve(120, 10, [](double x) { return 100 + x; }), 20, 1);
}

TEST(SimulateFit, SolveRefusesWhatNothingGives) {
  EXPECT_THROW(solve(50, 1, [](double x) { return 100 + x; }), WrongResult);
}

TEST(SimulateFit, NothingDecodesFasterThanItsRoofline) {
  const auto seconds = [](double slower) { return 100 * slower; };
  EXPECT_NEAR(solve_slower(150, 1, seconds), 1.5, 0.01);
  EXPECT_THROW(solve_slower(51, 1, seconds), WrongResult);
}

TEST(SimulateFit, NormalBelowIsTheNormalDistribution) {
  EXPECT_NEAR(normal_below(0), 0.5, 1e-12);
  EXPECT_NEAR(normal_below(1.96), 0.975, 1e-4);
  EXPECT_NEAR(normal_below(-1.96), 0.025, 1e-4);
}

TEST(SimulateFit, MinimiseFindsAValley) {
  const auto valley = [](const std::vector<double>& x) {
    return std::pow(x[0] - 3, 2) + 5 * std::pow(x[1] + 1 - x[0], 2);
  };
  const std::vector<double> found = minimise({0, 0}, 0.5, 300, valley);
  EXPECT_NEAR(found[0], 3, 0.01);
  EXPECT_NEAR(found[1], 2, 0.01);
}

TEST(SimulateLengths, HaveTheMeanThatWasAskedForOnceTheyAreCut) {
  const simulator::LengthModel model = lengths_of(11000, 32768, 0.8);
  const simulator::DrawnEpisodes source({{.length = model}}, 5);
  double sum = 0;
  const int64_t count = 20000;
  for (int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(source.draw(Lane::kTrain, {.prompt = i}, 1).tokens());
  EXPECT_NEAR(sum / static_cast<double>(count), 11000, 0.02 * 11000);
}

// Twenty steps of the longest of four responses on one engine, whose step takes 10 ms.
TEST(SimulateMeasure, AStepTakesAsLongAsItsLongestResponse) {
  simulator::Cluster cluster;
  cluster.wire.delay = 0;
  cluster.pools = {{.workers = 1, .slots = 4, .hardware = {.decode = {.step = 0.01}}}};
  const simulator::EpisodeModel episodes{.length = {.median = 100, .sigma_response = 1}};
  const Measured run = measure(law_of({}, 2, 2), cluster, episodes, 3, 20);
  ASSERT_EQ(run.steps.size(), 20U);
  EXPECT_NEAR(run.step, 0.01 * run.longest, 1e-3);
  EXPECT_NEAR(run.rollout, run.step, 1e-3);
  EXPECT_EQ(run.old_share, 0);
}

// No rollout worker: nothing would ever be sampled.
TEST(SimulateMeasure, ARunThatStandsStillIsNoResult) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = 0}};
  EXPECT_THROW(measure(law_of({}, 2, 2), cluster, {.length = {.median = 100}}, 0, 1), WrongResult);
}

}  // namespace
}  // namespace tailrace::simulate
