// Honest lengths: what a mode trains is as long as what the policy samples. A mode that keeps what
// ends first, or drops what ends last, trains on shorter answers than the policy gives, and nothing
// of a run shows that. The two-sample Kolmogorov-Smirnov test at 1 % compares the lengths of all
// samples that the steps of a run trained with lengths that another seed draws from the same model.
//
// Tail batching moves lengths about: short rounds train what ends first, long rounds what they
// left. It is biased in every window of steps, and by how much stands below as numbers.
//
// Each run goes on to the end of finite data: at a step limit the longest would still run, and be
// missing. The answers are independent, so that the test's critical value holds.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/simulator/world.h"

namespace tailrace::simulator {
namespace {

using scheduler::ModeName;
using scheduler::ModeOptions;

constexpr int64_t kPrompts = 16, kGroup = 8, kSteps = 80;

// Every answer by itself: with sigma 1 half of them are between 150 and 600 tokens, and one in a
// hundred has more than 3000.
EpisodeModel independent(double sigma = 1) {
  return {.length = {.median = 300, .sigma_response = sigma}};
}
// All answers to a prompt are as long as each other.
EpisodeModel by_prompt() { return {.length = {.median = 300, .sigma_prompt = 1}}; }

// The largest difference of the two distribution functions.
double distance(std::vector<int64_t> a, std::vector<int64_t> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  double largest = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t at = std::min(a[i], b[j]);
    while (i < a.size() && a[i] == at) ++i;
    while (j < b.size() && b[j] == at) ++j;
    largest = std::max(largest, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) -
                                         static_cast<double>(j) / static_cast<double>(b.size())));
  }
  return largest;
}

// At 1 %, of large samples (Smirnov 1948).
double critical(double a, double b) { return 1.628 * std::sqrt((a + b) / (a * b)); }

std::vector<int64_t> drawn(const EpisodeModel& model) {
  const DrawnEpisodes episodes({model}, 99);
  std::vector<int64_t> lengths;
  for (int64_t prompt = 0; prompt < 10 * kPrompts * kSteps; ++prompt)
    for (int32_t member = 0; member < kGroup; ++member)
      lengths.push_back(
          episodes.draw(Lane::kTrain, {.prompt = prompt, .member = member}, 1).tokens());
  return lengths;
}

// The samples of each step, to the end of the data.
using Steps = std::vector<std::vector<Sample>>;

Steps steps_of(const ModeOptions& options, const EpisodeModel& model) {
  scheduler::Config law;
  law.mode = options.mode();
  law.datasets = {
      {.prompts_per_step = kPrompts, .prompts_per_epoch = kPrompts * kSteps, .epochs = 1}};
  law.group_size = kGroup;
  law.deadlines.lease = std::chrono::hours(24);
  law.validate();
  Cluster cluster;
  cluster.pools = {{.workers = 4,
                    .slots = 64,
                    .hardware = {.decode = {.step = 0.01, .sequence = 1e-4}},
                    .transfer = {.fetch = 0.5, .switch_over = 0.1}}};
  cluster.trainer = {.step = 1, .token = 2e-5, .update = 1};
  const DrawnEpisodes episodes({model}, 1);
  World world(law, cluster, episodes, 1);
  Steps steps;
  world.on_step = [&](const StepRecord&, const std::vector<Sample>& samples) {
    steps.push_back(samples);
  };
  EXPECT_EQ(world.run(1e9), World::Stop::kEnded);
  return steps;
}

std::vector<int64_t> trained(const ModeOptions& options, const EpisodeModel& model) {
  std::vector<int64_t> lengths;
  for (const std::vector<Sample>& step : steps_of(options, model))
    for (const Sample& sample : step) lengths.push_back(sample.tokens);
  EXPECT_GE(std::ssize(lengths), kPrompts * kGroup * kSteps * 3 / 4);
  return lengths;
}

// By how much the distance exceeds the critical value: above 1 the lengths are others. `alike`: so
// many samples have one length together.
double excess(const ModeOptions& options, const EpisodeModel& model = independent(),
              double alike = 1) {
  const std::vector<int64_t> a = trained(options, model), b = drawn(model);
  return distance(a, b) /
         critical(static_cast<double>(a.size()) / alike, static_cast<double>(b.size()) / alike);
}

class HonestModes : public testing::TestWithParam<ModeName> {};

TEST_P(HonestModes, TrainTheLengthsThatThePolicySamples) {
  EXPECT_LT(excess(ModeOptions::preset(GetParam())), 1);
  ModeOptions longest_first = ModeOptions::preset(GetParam());
  longest_first.dispatch_order = scheduler::DispatchOrder::kLongestFirst;
  EXPECT_LT(excess(longest_first), 1);
}

INSTANTIATE_TEST_SUITE_P(Modes, HonestModes,
                         testing::Values(ModeName::kSync, ModeName::kPartial, ModeName::kAsync,
                                         ModeName::kStreaming),
                         [](const auto& one) { return std::string(name_of(one.param)); });

// At a tight bound a group that takes longer than a step is too old before it is complete.
TEST(HonestLengths, GroupsThatAreDroppedWhenStaleAreTheLongOnes) {
  ModeOptions options = ModeOptions::preset(ModeName::kAsync);
  options.max_staleness = 1;  // the default leaves room for them
  for (const auto kept : {scheduler::OnStale::kMask, scheduler::OnStale::kWait}) {
    options.on_stale = kept;
    EXPECT_LT(excess(options, independent(1.6)), 1);
  }
  options.on_stale = scheduler::OnStale::kDrop;
  EXPECT_GT(excess(options, independent(1.6)), 1);
}

// More members than a group keeps: it keeps those that end first, so the preset of tail batching is
// biased, and so is any mode with this key.
TEST(HonestLengths, RedundantMembersKeepTheShortAnswers) {
  for (const ModeName mode : {ModeName::kTailBatching, ModeName::kPartial}) {
    ModeOptions options = ModeOptions::preset(mode);
    options.launch_members = 1.25;
    EXPECT_GT(excess(options), 3);
  }
  EXPECT_EQ(ModeOptions::preset(ModeName::kTailBatching).launch_members, 1.25);
}

// More prompts than a round keeps, and the rest sampled again later: every prompt is trained, so
// that the lengths are right where they are the prompt's. Where answers to one prompt differ, a
// group that had a long one is sampled again, and the long answer is gone.
TEST(HonestLengths, RedundantPromptsAreHonestWhereThePromptMakesTheLength) {
  ModeOptions options = ModeOptions::preset(ModeName::kTailBatching);
  options.launch_members = 1;
  EXPECT_LT(excess(options, by_prompt(), /*alike=*/kGroup), 1);
  EXPECT_GT(excess(options), 1);
  // Partial rollout lets them run on.
  EXPECT_LT(excess(ModeOptions::preset(ModeName::kPartial), by_prompt(), /*alike=*/kGroup), 1);
}

// Tokens of the samples of some steps, over what the prompts of the dataset have on average,
// less 1.
double bias(std::span<const std::vector<Sample>> steps, double mean) {
  double tokens = 0, samples = 0;
  for (const std::vector<Sample>& step : steps)
    for (const Sample& sample : step) tokens += static_cast<double>(sample.tokens), ++samples;
  return tokens / samples / mean - 1;
}

// The least and the most of all windows of so many steps.
std::pair<double, double> biases(const Steps& steps, size_t window, double mean) {
  double least = 1e9, most = -1e9;
  for (size_t first = 0; first + window <= steps.size(); ++first) {
    const double found = bias(std::span(steps).subspan(first, window), mean);
    least = std::min(least, found), most = std::max(most, found);
  }
  return {least, most};
}

// What the dataset's prompts have: their first launch, of the seed that the run plays.
double mean_of_dataset(const EpisodeModel& model) {
  const DrawnEpisodes episodes({model}, 1);
  double tokens = 0;
  for (int64_t prompt = 0; prompt < kPrompts * kSteps; ++prompt)
    for (int32_t member = 0; member < kGroup; ++member)
      tokens += static_cast<double>(
          episodes.draw(Lane::kTrain, {.prompt = prompt, .member = member}, 1).tokens());
  return tokens / static_cast<double>(kPrompts * kSteps * kGroup);
}

// Where the prompt makes the length, a round only moves prompts to a later step.
TEST(TailBatching, OverAnEpochEachPromptIsTrainedOnceAndNothingIsBiased) {
  const EpisodeModel model = by_prompt();
  const Steps steps = steps_of(ModeOptions::preset(ModeName::kTailBatching), model);
  std::map<int64_t, int64_t> times;
  for (const std::vector<Sample>& step : steps)
    for (const Sample& sample : step) ++times[sample.member.prompt];
  EXPECT_EQ(std::ssize(times), kPrompts * kSteps);
  for (const auto& [prompt, samples] : times) EXPECT_EQ(samples, kGroup) << prompt;
  EXPECT_DOUBLE_EQ(bias(steps, mean_of_dataset(model)), 0);
}

// Four short rounds and the long one behind them are as far from the dataset as five steps of
// `sync`, which chance alone moves. A single step is not: -68 % for a short one, +294 % for a long
// one.
TEST(TailBatching, AWindowOfFiveStepsIsAsFarOffAsChanceIs) {
  const EpisodeModel model = by_prompt();
  const double mean = mean_of_dataset(model);
  const Steps steps = steps_of(ModeOptions::preset(ModeName::kTailBatching), model);
  const auto within = [&](size_t window, double least, double most) {
    const auto [lowest, highest] = biases(steps, window, mean);
    EXPECT_GT(lowest, least) << window;
    EXPECT_LT(highest, most) << window;
  };
  within(1, -0.75, 3.2);
  within(5, -0.35, 0.35);
  within(20, -0.13, 0.13);
  const Steps in_order = steps_of(ModeOptions::preset(ModeName::kSync), model);
  const auto [lowest, highest] = biases(in_order, 5, mean);
  EXPECT_LT(lowest, -0.3);
  EXPECT_GT(highest, 0.3);
  EXPECT_LT(biases(steps, 1, mean).first, -0.6);
  EXPECT_GT(biases(steps, 1, mean).second, 2.5);
}

// Where answers to one prompt differ, it trains shorter ones than the policy gives: of the preset
// 37 % shorter with sigma 1, most of it by its redundant members.
TEST(TailBatching, WhereTheAnswersToAPromptDifferItsBiasIsThis) {
  const double mean = mean_of_dataset(independent());
  const auto bias_of = [&](ModeOptions options) {
    return bias(steps_of(options, independent()), mean);
  };
  ModeOptions options = ModeOptions::preset(ModeName::kTailBatching);
  EXPECT_NEAR(bias_of(options), -0.37, 0.03);
  options.launch_members = 1;
  EXPECT_NEAR(bias_of(options), -0.12, 0.03);
  EXPECT_DOUBLE_EQ(bias_of(ModeOptions::preset(ModeName::kSync)), 0);
}

}  // namespace
}  // namespace tailrace::simulator
