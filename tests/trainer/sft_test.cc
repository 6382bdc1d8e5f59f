#include "trainer/sft.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

class SftFile : public ::testing::Test {
 protected:
  TemporaryDirectory dir_;
  std::filesystem::path path_ = dir_.path() / "rows.jsonl";

  std::vector<SftRow> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_sft_rows(path_, /*vocab_size=*/19, /*max_tokens=*/8);
  }
  void expect_refused(const std::string& text, const std::string& part) {
    try {
      read(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
};

TEST_F(SftFile, ReadsTokensAndTheTargetsOfTheMask) {
  std::vector<SftRow> rows = read(
      "{\"input_ids\": [1, 2, 3, 4], \"loss_mask\": [1, 0, 1, 1]}\n"
      "\n"
      "{\"input_ids\": [5, 6], \"loss_mask\": [1, 0]}\n"
      "{\"input_ids\": [7, 8, 9], \"extra\": true}\r\n");
  ASSERT_EQ(rows.size(), 2u);  // the second row has nothing that counts
  EXPECT_EQ(rows[0].tokens, (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(rows[0].targets, (std::vector<int32_t>{2, 3}));  // the first token never counts
  EXPECT_EQ(rows[1].targets, (std::vector<int32_t>{1, 2}));
}

TEST_F(SftFile, MistakesAreNamedWithFileAndLine) {
  const std::string good = "{\"input_ids\": [1, 2]}\n";
  expect_refused(good + "{oops}\n", path_.string() + ":2: not valid JSON");
  expect_refused(good + "[1]\n", ":2: not a JSON object");
  expect_refused(good + "{\"input_ids\": [1, 2], \"input_ids\": [1, 3]}\n",
                 ":2: ambiguous: it has \"input_ids\" twice");
  expect_refused(good + good + "{\"loss_mask\": [1]}\n", ":3: \"input_ids\" is missing");
  expect_refused("{\"input_ids\": 5}\n", ":1: \"input_ids\" must be a list");
  expect_refused("{\"input_ids\": [1, \"a\"]}\n", ":1: \"input_ids\" holds \"a\"");
  expect_refused("{\"input_ids\": [1, 2.5]}\n", ":1: \"input_ids\" holds 2.5");
  expect_refused("{\"input_ids\": [1, 18446744073709551615]}\n", "holds 18446744073709551615");
  expect_refused("{\"input_ids\": [1, 19]}\n",
                 ":1: input_ids holds 19; the model's vocabulary has 19");
  expect_refused("{\"input_ids\": [1, -1]}\n", "input_ids holds -1");
  expect_refused("{\"input_ids\": [1, 2], \"loss_mask\": [1]}\n",
                 "loss_mask has 1 entries and input_ids 2");
  expect_refused("{\"input_ids\": [1, 2], \"loss_mask\": [1, 2]}\n", "loss_mask holds 2");
  expect_refused("{\"input_ids\": [1,1,1,1,1,1,1,1,1]}\n", "has 9 tokens; the context holds 8");
  expect_refused("", "no row");
  std::filesystem::remove(path_);
  EXPECT_THROW(read_sft_rows(path_, 19, 8), UserError);
  EXPECT_THROW(read_sft_rows(dir_.path(), 19, 8), UserError);
}

// As TRL and the collators of transformers write them.
TEST_F(SftFile, ReadsTheMasksOfOthers) {
  const std::string ids = "{\"input_ids\": [1, 2, 3, 4], ";
  for (const char* mask :
       {"\"labels\": [-100, -100, 3, 4]", "\"labels\": [1, -100, 3, 4]",
        "\"completion_mask\": [0, 0, 1, 1]", "\"assistant_masks\": [false, false, true, true]",
        "\"loss_mask\": null, \"labels\": [-100, -100, 3, 4], \"attention_mask\": [1, 1, 1, 1]",
        "\"loss_mask\": [1, 0, 1, 1], \"labels\": [-100, -100, 3, 4]",
        "\"loss_mask\": [0, 0, 1, 1], \"my_mask\": [0, 0, 1, 1]"}) {
    const std::vector<SftRow> rows = read(ids + mask + "}\n");
    ASSERT_EQ(rows.size(), 1u) << mask;
    EXPECT_EQ(rows[0].targets, (std::vector<int32_t>{2, 3})) << mask;
  }
  expect_refused(ids + "\"labels\": [-100, 3, 4, 1]}",
                 ":1: labels holds 3 at place 1, where input_ids holds 2; a label is -100");
  expect_refused(ids + "\"labels\": [-100, -100, true, 4]}", "\"labels\" holds true");
  expect_refused(ids + "\"labels\": [-100]}", "labels has 1 entries and input_ids 4");
  expect_refused(ids + "\"loss_mask\": [0, 1, 1, 1], \"labels\": [-100, -100, 3, 4]}",
                 ":1: loss_mask and labels differ");
  expect_refused(ids + "\"completion_mask\": [0, 1, 1, 1], \"assistant_masks\": [0, 0, 1, 1]}",
                 "completion_mask and assistant_masks differ");
  expect_refused(ids + "\"attention_mask\": [1, 1, 1, 0]}",
                 ":1: attention_mask holds 0: the row is padded");
  expect_refused(ids + "\"prompt_mask\": [1, 1, 0, 0]}",
                 ":1: the mask \"prompt_mask\" is not known");
}

TEST_F(SftFile, TokensAreNoTruthValues) {
  expect_refused("{\"input_ids\": [true, false, true]}",
                 ":1: \"input_ids\" holds true; it must be a list of integers");
}

std::vector<SftRow> random_rows(int64_t count) {
  Rng rng(4);
  std::vector<SftRow> rows;
  for (int64_t i = 0; i < count; ++i) {
    SftRow row;
    auto start = static_cast<TokenId>(rng.below(19));
    int64_t length = 3 + rng.below(10);
    // A rule that can be learnt: the next token is the last plus three.
    for (int64_t j = 0; j < length; ++j)
      row.tokens.push_back(static_cast<TokenId>((start + 3 * j) % 19));
    for (int32_t j = 1; j < static_cast<int32_t>(length); ++j) row.targets.push_back(j);
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(SftBatches, HoldEveryRowOnceInAnOrderOfSeedAndEpoch) {
  std::vector<SftRow> rows = random_rows(50);
  rows[7].tokens.resize(60);  // longer than a batch
  auto batches = sft_batches(rows, 40, 1, 0);
  std::multiset<size_t> seen;
  for (const auto& batch : batches) {
    int64_t tokens = 0;
    for (size_t row : batch) {
      seen.insert(row);
      tokens += static_cast<int64_t>(rows[row].tokens.size());
    }
    EXPECT_TRUE(tokens <= 40 || batch.size() == 1);
  }
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), 50u);
  EXPECT_EQ(sft_batches(rows, 40, 1, 0), batches);
  EXPECT_NE(sft_batches(rows, 40, 2, 0), batches);
  EXPECT_NE(sft_batches(rows, 40, 1, 1), batches);
}

SftOptions short_batches(const RowOptions& rows) {
  SftOptions options{rows};
  options.batch_tokens = 64;
  return options;
}

TEST(SftTask, LearnsARuleAndEndsAfterItsEpochs) {
  auto trainer = testing::tiny_trainer({});
  const SftOptions options =
      short_batches({.epochs = 6, .optim = {.lr = 1e-2, .schedule = LrSchedule::kLinear}});
  SftTask task(*trainer, options, random_rows(100), {}, 1);
  double first = 0, last = 0;
  int64_t updates = 0;
  while (std::optional<MetricList> metrics = task.update()) {
    last = testing::metric(*metrics, "sft/loss");
    if (updates++ == 0) first = last;
  }
  EXPECT_EQ(updates, task.total_updates());
  EXPECT_EQ(updates, task.updates_done());
  EXPECT_FALSE(task.update());
  EXPECT_GT(first, 2);
  EXPECT_LT(last, 1);
}

// Of N updates the first has the whole rate and the last one an N-th of it; one that was killed
// goes on where it was.
TEST(SftTask, TheScheduleEndsBehindTheLastUpdate) {
  const SftOptions options = short_batches(
      {.epochs = 2, .optim = {.lr = 1e-2, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0}});
  auto trainer = testing::tiny_trainer({});
  SftTask task(*trainer, options, random_rows(60), {}, 1);
  const auto total = static_cast<double>(task.total_updates());
  ASSERT_GT(total, 3);
  double done = 0;
  while (std::optional<MetricList> metrics = task.update())
    EXPECT_NEAR(testing::metric(*metrics, "sft/lr"), 1e-2 * (total - done++) / total, 1e-12);
  EXPECT_EQ(done, total);
  TemporaryDirectory dir;
  SftTask killed(*trainer, options, random_rows(60), {}, 1);
  for (int i = 0; i < 3; ++i) (void)killed.update();
  trainer->optimizer().save(dir.path() / "o.safetensors");
  SftTask again(*trainer, options, random_rows(60), {}, 1);
  trainer->optimizer().load(dir.path() / "o.safetensors");
  again.skip(3);
  EXPECT_NEAR(testing::metric(*again.update(), "sft/lr"), 1e-2 * (total - 3) / total, 1e-12);
  SftOptions one = options;
  one.epochs = 1;
  one.batch_tokens = 1 << 20;
  SftTask single(*trainer, one, random_rows(60), {}, 1);
  ASSERT_EQ(single.total_updates(), 1);
  EXPECT_EQ(testing::metric(*single.update(), "sft/lr"), 1e-2);
}

TEST(SftTask, MeasuresHeldOutRowsWithoutLearningFromThem) {
  auto trainer = testing::tiny_trainer({});
  const SftOptions options = short_batches({.eval_updates = 3, .epochs = 6, .optim = {.lr = 1e-2}});
  const std::vector<SftRow> rows = random_rows(100);
  const std::vector<SftRow> held_out(rows.begin(), rows.begin() + 20);
  SftTask task(*trainer, options, rows, held_out, 1);
  const std::vector<float> before(trainer->parameters().flat().begin(),
                                  trainer->parameters().flat().end());
  const MetricList first = task.evaluate();
  EXPECT_TRUE(std::ranges::equal(before, trainer->parameters().flat()));
  // By the log-probabilities of the trainer itself.
  double sum = 0;
  int64_t targets = 0;
  for (const SftRow& row : held_out) {
    const PackedSequence sequence{.tokens = row.tokens, .targets = row.targets};
    const auto logprobs = trainer->score({&sequence, 1});
    for (const float l : logprobs.front()) sum -= l;
    targets += std::ssize(row.targets);
  }
  EXPECT_NEAR(testing::metric(first, "sft/eval_loss"), sum / static_cast<double>(targets), 1e-6);
  EXPECT_LT(testing::metric(first, "sft/eval_token_accuracy"), 0.3);
  std::vector<int64_t> due;
  while (task.update())
    if (task.evaluation_is_due()) due.push_back(task.updates_done());
  for (size_t i = 0; i + 1 < due.size(); ++i) EXPECT_EQ(due[i], 3 * static_cast<int64_t>(i + 1));
  EXPECT_EQ(due.back(), task.total_updates());
  const MetricList last = task.evaluate();
  EXPECT_LT(testing::metric(last, "sft/eval_loss"), 1);
  // A rule without exceptions: the likeliest token is the right one nearly everywhere.
  EXPECT_GT(testing::metric(last, "sft/eval_token_accuracy"), 0.8);
}

TEST(SftTask, AnyNumberOfRanksTrainsAndMeasuresTheSame) {
  const auto work = [](Collective* ranks) {
    auto trainer = testing::tiny_trainer({.gradient_slots = 4});
    trainer->join(ranks);
    SftTask task(*trainer, short_batches({.optim = {.lr = 1e-2}}), random_rows(40), random_rows(7),
                 1);
    MetricList last;
    while (auto metrics = task.update()) last = *metrics;
    return std::tuple(last, task.evaluate(), testing::copy(trainer->parameters().flat()));
  };
  const auto alone = work(nullptr);
  for (const int size : {2, 4})
    for (const auto& rank : testing::on_ranks(size, work)) EXPECT_EQ(rank, alone) << size;
}

TEST(SftTask, GoesOnFromWhereItWasSavedWithTheSameBits) {
  const SftOptions options = short_batches(
      {.epochs = 2, .optim = {.lr = 1e-2, .warmup_updates = 3, .schedule = LrSchedule::kLinear}});
  TemporaryDirectory dir;
  auto whole = testing::tiny_trainer({});
  SftTask task(*whole, options, random_rows(60), {}, 1);
  CheckpointFolder folder(dir.path() / "sft", {}, 1);
  for (int i = 0; i < 5; ++i) task.update();
  ASSERT_TRUE(folder.save({.step = task.updates_done()}, whole->model().config(),
                          whole->parameters(), whole->optimizer()));
  while (task.update()) {
  }
  auto again = testing::tiny_trainer({});
  SftTask rest(*again, options, random_rows(60), {}, 1);
  const auto loaded =
      folder.load_latest(again->model().config(), again->parameters(), again->optimizer());
  ASSERT_TRUE(loaded);
  again->weights_changed();
  rest.skip(loaded->state.step);
  EXPECT_EQ(rest.updates_done(), 5);
  while (rest.update()) {
  }
  EXPECT_TRUE(std::ranges::equal(whole->parameters().flat(), again->parameters().flat()));
}

TEST(SftTask, ObservedTokensThatDoNotCountGiveNoGradient) {
  // Only the last token counts: an update must not depend on what the batch holds after the last
  // target.
  auto loss_after = [](TokenId tail) {
    auto trainer = testing::tiny_trainer({});
    SftRow row{.tokens = {1, 2, 3, tail}, .targets = {2}};
    SftTask task(*trainer, short_batches({.optim = {.lr = 1e-2}}), {row}, {}, 1);
    task.update();
    return std::vector<float>(trainer->parameters().flat().begin(),
                              trainer->parameters().flat().end());
  };
  EXPECT_EQ(loss_after(4), loss_after(5));
}

}  // namespace
}  // namespace tailrace
