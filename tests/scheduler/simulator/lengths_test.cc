// Honest lengths: what a mode trains is as long as what the policy samples. A mode that keeps what
// ends first, or drops what ends last, trains on shorter answers than the policy gives, and nothing
// of a run shows that. The two-sample Kolmogorov-Smirnov test at 1 % compares the lengths of all
// samples that the steps of a run trained with lengths that another seed draws from the same model.
//
// Each run goes on to the end of finite data: at a step limit the longest would still run, and be
// missing. The answers are independent, so that the test's critical value holds.
#include <algorithm>
#include <cmath>

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

std::vector<int64_t> trained(const ModeOptions& options, const EpisodeModel& model) {
  scheduler::Config law;
  law.mode = options.mode();
  law.domains = {
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
  std::vector<int64_t> lengths;
  world.on_step = [&](const StepRecord&, const std::vector<Sample>& samples) {
    for (const Sample& sample : samples) lengths.push_back(sample.tokens);
  };
  EXPECT_EQ(world.run(1e9), World::Stop::kEnded);
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

}  // namespace
}  // namespace tailrace::simulator
