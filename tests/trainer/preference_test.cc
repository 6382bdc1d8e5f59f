// Preferences through a model: the losses are those of the pure functions, gradients are slopes,
// and nothing depends on micro-batches, ranks or a kill. The losses themselves are tested in
// loss/preference_test.cc.
#include "trainer/preference.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"
#include "tests/trainer/random_preferences.h"
#include "tests/trainer/slopes.h"
#include "trainer/checkpoint.h"
#include "trainer/loss/preference.h"

namespace tailrace {
namespace {

using testing::copy;
using testing::metric;
using testing::random_pairs;
using testing::random_unpaired;
using testing::tiny_trainer;

constexpr PreferenceLoss kLosses[] = {
    PreferenceLoss::kSigmoid, PreferenceLoss::kHinge,    PreferenceLoss::kIpo,
    PreferenceLoss::kRobust,  PreferenceLoss::kExoPair,  PreferenceLoss::kNcaPair,
    PreferenceLoss::kBcoPair, PreferenceLoss::kSppoHard, PreferenceLoss::kApoZero,
    PreferenceLoss::kApoDown, PreferenceLoss::kDiscopop, PreferenceLoss::kSigmoidNorm,
    PreferenceLoss::kOrpo,    PreferenceLoss::kSimpo,    PreferenceLoss::kCpo,
    PreferenceLoss::kKto};

PreferenceOptions options_of(PreferenceLoss kind, double lr = 0) {
  PreferenceOptions options;
  options.loss.kind = kind;
  options.loss.beta = 0.3;
  if (kind == PreferenceLoss::kRobust) options.loss.label_smoothing = 0.1;
  options.batch_rows = 100;
  options.optim.lr = lr;
  return options;
}

std::vector<PreferenceRow> rows_for(PreferenceLoss kind, int64_t count) {
  return is_paired(kind) ? random_pairs(count) : random_unpaired(count);
}

class EachLoss : public ::testing::TestWithParam<PreferenceLoss> {};

// The first update's loss is that of the policy's own log-probabilities, and its gradient is the
// slope of the loss, for all tensors.
TEST_P(EachLoss, HasTheSlopeOfItsLossAsGradient) {
  const std::vector<PreferenceRow> rows = rows_for(GetParam(), 6);
  auto trainer = tiny_trainer({});
  PreferenceTask task(*trainer, options_of(GetParam()), rows, rows, 1);
  // Away from the reference, where a loss has a curve; and with z at its bound, so that it is the
  // constant that it is for the gradient.
  std::vector<double> reference = *task.score_reference();
  for (size_t i = 0; i < reference.size(); ++i)
    reference[i] +=
        is_paired(GetParam()) ? 0.7 - 0.2 * static_cast<double>(i % (2 * rows.size()) % 5) : 3;
  task.set_reference(reference);
  const double first = metric(*task.update(), "preference/loss");
  EXPECT_NEAR(metric(task.evaluate(), "preference/eval_loss"), first, 1e-9);
  const std::vector<float> gradient = copy(trainer->gradients().flat());
  Rng rng(8);
  // Some losses are far from 1, and steep.
  testing::expect_slopes(
      *trainer, gradient, rng, [&] { return metric(task.evaluate(), "preference/eval_loss"); },
      2e-4 * std::max(1.0, first));
}

INSTANTIATE_TEST_SUITE_P(Preference, EachLoss, ::testing::ValuesIn(kLosses),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(Preference, TheLossIsThatOfThePairsLogProbabilities) {
  const std::vector<PreferenceRow> rows = random_pairs(5);
  auto trainer = tiny_trainer({});
  const PreferenceOptions options = options_of(PreferenceLoss::kSigmoid, 1e-2);
  PreferenceTask task(*trainer, options, rows, {}, 1);
  std::vector<double> reference = *task.score_reference();
  ASSERT_EQ(reference.size(), 10u);
  reference[2] += 2;
  reference[3] -= 1;
  task.set_reference(reference);
  double loss = 0, right = 0, margin = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    double sums[2] = {};
    for (size_t half = 0; half < 2; ++half) {
      std::vector<TokenId> tokens = rows[row].prompt;
      const auto& completion = half == 0 ? rows[row].chosen : rows[row].rejected;
      tokens.insert(tokens.end(), completion.begin(), completion.end());
      std::vector<int32_t> targets;
      for (size_t i = rows[row].prompt.size(); i < tokens.size(); ++i)
        targets.push_back(static_cast<int32_t>(i));
      const PackedSequence sequence{.tokens = tokens, .targets = targets};
      const std::vector<float> scored = trainer->score({&sequence, 1})[0];
      for (const float l : scored) sums[half] += l;
    }
    const PairLoss pair =
        pair_loss(options.loss, {.chosen = sums[0],
                                 .rejected = sums[1],
                                 .ref_chosen = reference[2 * row],
                                 .ref_rejected = reference[2 * row + 1],
                                 .chosen_tokens = std::ssize(rows[row].chosen),
                                 .rejected_tokens = std::ssize(rows[row].rejected)});
    loss += pair.loss / 5;
    margin += (pair.chosen_reward - pair.rejected_reward) / 5;
    right += pair.chosen_reward > pair.rejected_reward ? 0.2 : 0;
  }
  const MetricList metrics = *task.update();
  EXPECT_NEAR(metric(metrics, "preference/loss"), loss, 1e-9);
  EXPECT_NEAR(metric(metrics, "rewards/margins"), margin, 1e-9);
  EXPECT_NEAR(metric(metrics, "rewards/accuracies"), right, 1e-9);
  EXPECT_LT(metric(metrics, "logps/chosen"), 0);
}

// Against itself a policy has no margin: DPO's loss is log 2.
TEST(Preference, BeginsAtItsReferenceAndLearnsItsPairs) {
  const std::vector<PreferenceRow> rows = random_pairs(12);
  auto trainer = tiny_trainer({});
  PreferenceOptions options = options_of(PreferenceLoss::kSigmoid, 5e-3);
  options.epochs = 20;
  PreferenceTask task(*trainer, options, rows, rows, 1);
  task.set_reference(*task.score_reference());
  const MetricList before = task.evaluate();
  EXPECT_NEAR(metric(before, "preference/eval_loss"), std::log(2), 1e-9);
  EXPECT_EQ(metric(before, "eval_rewards/margins"), 0);
  while (task.update()) {
  }
  const MetricList after = task.evaluate();
  EXPECT_LT(metric(after, "preference/eval_loss"), 0.3);
  EXPECT_GT(metric(after, "eval_rewards/accuracies"), 0.9);
}

TEST(Preference, ADesirableCompletionBecomesLikelierAndAnotherOneLess) {
  const std::vector<PreferenceRow> rows = random_unpaired(12);
  auto trainer = tiny_trainer({});
  PreferenceOptions options = options_of(PreferenceLoss::kKto, 5e-3);
  options.epochs = 20;
  PreferenceTask task(*trainer, options, rows, rows, 1);
  task.set_reference(*task.score_reference());
  const MetricList before = task.evaluate();
  EXPECT_NEAR(metric(before, "preference/eval_loss"), 0.5, 1e-9);
  while (task.update()) {
  }
  const MetricList after = task.evaluate();
  EXPECT_GT(metric(after, "eval_rewards/chosen"), 0.3);
  EXPECT_LT(metric(after, "eval_rewards/rejected"), -0.3);
  EXPECT_LT(metric(after, "preference/eval_loss"), 0.4);
}

struct Trained {
  std::vector<float> weights;
  MetricList metrics;
  bool operator==(const Trained&) const = default;
};

Trained train(Collective* ranks, PreferenceLoss kind, const TrainOptions& train) {
  ThreadPool pool(ranks == nullptr ? 1 : ranks->rank() + 1);
  auto trainer = tiny_trainer(train, {}, Stream{{}, &pool, nullptr},
                              ranks == nullptr ? 1 : static_cast<uint64_t>(ranks->rank()) + 1);
  trainer->join(ranks);
  PreferenceOptions options = options_of(kind, 1e-2);
  options.batch_rows = 7;
  options.epochs = 2;
  PreferenceTask task(*trainer, options, rows_for(kind, 16), rows_for(kind, 3), 1);
  task.set_reference(*task.score_reference());
  Trained trained;
  while (auto metrics = task.update()) trained.metrics = *metrics;
  const MetricList measured = task.evaluate();
  trained.metrics.insert(trained.metrics.end(), measured.begin(), measured.end());
  trained.weights = copy(trainer->parameters().flat());
  return trained;
}

TEST(Preference, AnyNumberOfRanksTrainsTheSameWeights) {
  for (const PreferenceLoss kind : {PreferenceLoss::kSigmoid, PreferenceLoss::kKto}) {
    const TrainOptions options{.microbatch_tokens = 100, .gradient_slots = 4};
    const Trained alone = train(nullptr, kind, options);
    for (const int size : {2, 4}) {
      for (const Trained& rank :
           testing::on_ranks(size, [&](Collective* group) { return train(group, kind, options); }))
        EXPECT_EQ(rank, alone) << size << name_of(kind);
    }
  }
}

// A pair is never cut: with room for one pair a pass, and with room for all.
TEST(Preference, MicroBatchesMoveOnlyTheLastDigits) {
  const Trained whole = train(nullptr, PreferenceLoss::kSigmoid, {});
  const Trained cut = train(nullptr, PreferenceLoss::kSigmoid, {.microbatch_tokens = 64});
  const Trained unshared = train(nullptr, PreferenceLoss::kSigmoid, {.share_prefixes = false});
  for (const Trained* other : {&cut, &unshared}) {
    EXPECT_NEAR(metric(other->metrics, "preference/loss"), metric(whole.metrics, "preference/loss"),
                1e-3);
    for (size_t i = 0; i < whole.weights.size(); ++i)
      ASSERT_NEAR(other->weights[i], whole.weights[i], 5e-3);
  }
}

TEST(Preference, GoesOnFromWhereItWasSavedWithTheSameBits) {
  for (const PreferenceLoss kind : {PreferenceLoss::kSigmoid, PreferenceLoss::kKto}) {
    PreferenceOptions options = options_of(kind, 1e-2);
    options.batch_rows = 4;
    options.epochs = 3;
    options.optim.schedule = LrSchedule::kLinear;
    const std::vector<PreferenceRow> rows = rows_for(kind, 13);
    TemporaryDirectory dir;
    auto whole = tiny_trainer({});
    PreferenceTask task(*whole, options, rows, {}, 1);
    const std::vector<double> reference = *task.score_reference();
    task.set_reference(reference);
    CheckpointFolder folder(dir.path() / "preference", {}, 1);
    for (int i = 0; i < 5; ++i) task.update();
    ASSERT_TRUE(folder.save({.step = task.updates_done()}, whole->model().config(),
                            whole->parameters(), whole->optimizer()));
    while (task.update()) {
    }
    auto again = tiny_trainer({}, {}, {}, 9);
    PreferenceTask rest(*again, options, rows, {}, 1);
    const auto loaded =
        folder.load_latest(again->model().config(), again->parameters(), again->optimizer());
    ASSERT_TRUE(loaded);
    again->weights_changed();
    rest.set_reference(reference);
    rest.skip(loaded->state.step);
    while (rest.update()) {
    }
    EXPECT_TRUE(std::ranges::equal(whole->parameters().flat(), again->parameters().flat()));
  }
}

TEST(Preference, AnAdapterIsComparedWithItsBase) {
  ModelConfig model = testing::tiny_model();
  model.lora = {.rank = 4, .alpha = 8, .targets = {LoraTarget::kQ, LoraTarget::kV}};
  PolicyTrainer base(Stream{}, testing::tiny_model(), {}, testing::kMaxSequenceTokens);
  init_parameters(testing::tiny_model(), 1, base.parameters());
  base.weights_changed();
  PolicyTrainer trainer(Stream{}, model, {}, testing::kMaxSequenceTokens, {}, base.packed());
  init_parameters(model, 2, trainer.parameters());
  trainer.weights_changed();
  const std::vector<PreferenceRow> rows = random_pairs(8);
  PreferenceOptions options = options_of(PreferenceLoss::kSigmoid, 2e-2);
  options.epochs = 30;
  PreferenceTask task(trainer, options, rows, rows, 1);
  const std::vector<double> reference = *task.score_reference();
  PreferenceTask of_base(base, options, rows, rows, 1);
  EXPECT_EQ(*of_base.score_reference(), reference);  // a fresh adapter adds nothing
  task.set_reference(reference);
  while (task.update()) {
  }
  EXPECT_GT(metric(task.evaluate(), "eval_rewards/accuracies"), 0.8);
}

// Piece by piece the reference has the same bits, and may be stopped in between.
TEST(Preference, TheReferenceIsScoredInPieces) {
  const std::vector<PreferenceRow> rows = random_pairs(9);
  const PreferenceOptions options = options_of(PreferenceLoss::kSigmoid);
  auto one = tiny_trainer({}), many = tiny_trainer({.microbatch_tokens = 64});
  PreferenceTask whole(*one, options, rows, rows, 1), pieces(*many, options, rows, rows, 1);
  EXPECT_EQ(*whole.score_reference(), *pieces.score_reference());
  int asked = 0;
  EXPECT_FALSE(pieces.score_reference([&] { return ++asked == 4; }));
  EXPECT_EQ(asked, 4);
}

TEST(Preference, AMismatchIsTheNextRowWithAnotherPrompt) {
  std::vector<PreferenceRow> rows = random_unpaired(5);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].prompt = {static_cast<TokenId>(i < 3 ? 1 : 2)};
    rows[i].chosen = {static_cast<TokenId>(10 + i)};
  }
  const auto mismatches = [&] {
    std::vector<TokenId> found;
    const PreferenceSequences all(rows, 64);
    for (size_t i = 0; i < rows.size(); ++i) found.push_back(all.sequences[2 * i + 1].tokens[1]);
    return found;
  };
  EXPECT_EQ(mismatches(), (std::vector<TokenId>{13, 13, 13, 10, 10}));
  for (PreferenceRow& row : rows) row.prompt = {1};
  EXPECT_EQ(mismatches(), (std::vector<TokenId>{10, 11, 12, 13, 14})) << "one prompt: its own";
}

TEST(Preference, UpdatesEndItBeforeItsEpochsDo) {
  const std::vector<PreferenceRow> rows = random_unpaired(9);
  auto trainer = tiny_trainer({});
  PreferenceOptions options = options_of(PreferenceLoss::kKto);
  options.batch_rows = 4;
  options.epochs = 5;
  // 9 rows are batches of 4 and 5: a rest of one would be its own mean divergence.
  EXPECT_EQ(PreferenceTask(*trainer, options, rows, {}, 1).total_updates(), 10);
  options.updates = 3;
  EXPECT_EQ(PreferenceTask(*trainer, options, rows, {}, 1).total_updates(), 3);
}

TEST(Preference, TheLongestPairSaysWhatAPassMustHold) {
  std::vector<PreferenceRow> rows = random_pairs(2);
  rows[1].prompt.assign(20, 1);
  rows[1].chosen.assign(15, 2);
  rows[1].rejected.assign(5, 3);
  rows[0].prompt.assign(3, 1);
  EXPECT_EQ(most_pair_tokens(rows), 60);
}

}  // namespace
}  // namespace tailrace
