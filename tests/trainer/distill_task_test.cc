// Distillation from rows: what a teacher said of them as a file, learning from it, and what nothing
// depends on.
#include "trainer/distill_task.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"

namespace tailrace::distill_task_test {
namespace {

using testing::copy;
using testing::metric;
using testing::tiny_trainer;

constexpr int64_t kVocab = 19, kTopK = 4;

std::vector<SftRow> random_rows(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<SftRow> rows;
  for (size_t i = 0; i < count; ++i) {
    SftRow row;
    const int64_t length = 4 + rng.below(8);
    for (int32_t k = 0; k < length; ++k) {
      row.tokens.push_back(static_cast<TokenId>(rng.below(kVocab)));
      if (k >= 2 && (k == 2 || k % 3 != 0)) row.targets.push_back(k);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// A teacher that likes the token behind the last one best.
TeacherScores answers(const SftRow& row, int64_t top_k) {
  TeacherScores scores;
  for (const int32_t target : row.targets) {
    const auto last = row.tokens[static_cast<size_t>(target) - 1];
    float here = -8;
    for (int64_t i = 0; i < kTopK; ++i) {
      const auto id = static_cast<TokenId>((last + 1 + i) % kVocab);
      const float logprob = i == 0 ? std::log(.9f) : std::log(.02f);
      if (id == row.tokens[static_cast<size_t>(target)]) here = logprob;
      if (top_k == 0) continue;
      scores.ids.push_back(id);
      scores.id_logprobs.push_back(logprob);
    }
    scores.logprobs.push_back(here);
  }
  return scores;
}

DistillStageOptions some_options() {
  DistillStageOptions options;
  options.epochs = 20;
  options.batch_tokens = 64;
  options.loss.top_k = kTopK;
  options.optim.lr = 1e-2;
  return options;
}

class DistillTaskTest : public ::testing::Test {
 protected:
  TemporaryDirectory dir_;
  std::vector<SftRow> rows_ = random_rows(12, 5), held_out_ = random_rows(7, 6);

  std::filesystem::path write(const DistillTask& task) const {
    const std::filesystem::path path = dir_.path() / "teacher";
    TeacherFileWriter writer(path, task.head());
    for (size_t i = 0; i < task.num_rows(); ++i)
      writer.add(bytes_of(answers(task.row(i), task.head().top_k), task.head().top_k));
    writer.commit();
    return path;
  }
};

TEST_F(DistillTaskTest, LearnsWhatTheTeacherSaysAlsoOfRowsThatAreHeldOut) {
  for (const DistillLoss kind : {DistillLoss::kJsd, DistillLoss::kK3}) {
    auto trainer = tiny_trainer({});
    DistillStageOptions options = some_options();
    options.loss.kind = kind;
    DistillTask task(Stream{}, *trainer, options, rows_, held_out_, /*seed=*/3);
    task.set_scores(TeacherFile::open(write(task), task.head()).value());
    const double eval_before = metric(task.evaluate(), "distill/eval_loss");
    const double before = metric(*task.update(), "distill/loss");
    MetricList last;
    while (const auto metrics = task.update()) last = *metrics;
    EXPECT_LT(metric(last, "distill/loss"), .5 * before) << name_of(kind);
    if (kind != DistillLoss::kJsd) continue;
    EXPECT_LT(metric(task.evaluate(), "distill/eval_loss"), .8 * eval_before);
    EXPECT_NEAR(metric(task.evaluate(), "distill/eval_teacher_mass"), .96, 1e-5);
  }
}

// An evaluation measures as an update does, and moves nothing.
TEST_F(DistillTaskTest, AnEvaluationIsTheLossOfAnUpdate) {
  auto trainer = tiny_trainer({});
  DistillStageOptions options = some_options();
  options.batch_tokens = 10'000;
  held_out_ = rows_;
  DistillTask task(Stream{}, *trainer, options, rows_, held_out_, /*seed=*/3);
  task.set_scores(TeacherFile::open(write(task), task.head()).value());
  const std::vector<float> weights = copy(trainer->parameters().flat());
  const MetricList measured = task.evaluate();
  EXPECT_EQ(copy(trainer->parameters().flat()), weights);
  const MetricList updated = *task.update();
  for (const char* name : {"loss", "log_ratio", "student_mass", "teacher_mass", "overlap_ratio"})
    // Sums of a hundred doubles in another order.
    EXPECT_NEAR(metric(measured, std::string("distill/eval_") + name),
                metric(updated, std::string("distill/") + name), 1e-12)
        << name;
}

TEST_F(DistillTaskTest, AnyNumberOfRanksTrainsTheSameWeights) {
  const auto work = [&](Collective* ranks) {
    ThreadPool pool(ranks == nullptr ? 1 : ranks->rank() + 1);
    const Stream stream{{}, &pool, nullptr};
    auto trainer = tiny_trainer({.microbatch_tokens = 64, .gradient_slots = 4}, {}, stream);
    trainer->join(ranks);
    DistillStageOptions options = some_options();
    options.updates = 5;
    DistillTask task(stream, *trainer, options, rows_, held_out_, /*seed=*/3);
    task.set_scores(TeacherFile::open(dir_.path() / "teacher", task.head()).value());
    while (task.update()) continue;
    return std::pair(task.evaluate(), copy(trainer->parameters().flat()));
  };
  auto trainer = tiny_trainer({});
  DistillStageOptions options = some_options();
  options.updates = 5;
  write(DistillTask(Stream{}, *trainer, options, rows_, held_out_, /*seed=*/3));
  const auto alone = work(nullptr);
  for (const int size : {2, 4})
    for (const auto& rank : testing::on_ranks(size, work)) EXPECT_EQ(rank, alone) << size;
}

TEST_F(DistillTaskTest, AFileOfAnswersProvesItself) {
  auto trainer = tiny_trainer({});
  const DistillTask task(Stream{}, *trainer, some_options(), rows_, held_out_, /*seed=*/3);
  const std::filesystem::path path = write(task);
  const TeacherFileHead head = task.head();
  EXPECT_EQ(head.top_k, kTopK);
  const auto opened = TeacherFile::open(path, head);
  ASSERT_TRUE(opened.ok()) << opened.failure().message;
  const TeacherScores second =
      opened.value().scores(std::ssize(task.row(0).targets), std::ssize(task.row(1).targets));
  const TeacherScores said = answers(task.row(1), kTopK);
  EXPECT_EQ(second.logprobs, said.logprobs);
  EXPECT_EQ(second.ids, said.ids);
  EXPECT_EQ(second.id_logprobs, said.id_logprobs);
  EXPECT_EQ(second.offsets.size(), task.row(1).targets.size() + 1);

  std::vector<SftRow> others = rows_;
  others[0].tokens[0] = (others[0].tokens[0] + 1) % kVocab;
  const DistillTask of_others(Stream{}, *trainer, some_options(), others, held_out_, /*seed=*/3);
  const auto told = [&](const TeacherFileHead& asked) {
    const auto result = TeacherFile::open(path, asked);
    return result.ok() ? "" : result.failure().message;
  };
  EXPECT_NE(told(of_others.head()).find("of other rows"), std::string::npos);
  const std::string text = read_file(path).value();
  std::string flipped = text;
  flipped[flipped.size() / 2] ^= 1;
  for (const std::string& damaged : {flipped, text.substr(0, text.size() - 1), text + "0"}) {
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_NE(told(head).find("damaged"), std::string::npos);
  }
  std::filesystem::remove(path);
  EXPECT_NE(told(head), "");
}

}  // namespace
}  // namespace tailrace::distill_task_test
