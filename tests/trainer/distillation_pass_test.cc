// Distillation of given sequences: its loss against whole rows of log-probabilities, its gradient
// against slopes, learning, and what nothing depends on.
#include "trainer/distillation_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/on_ranks.h"
#include "tests/trainer/slopes.h"

namespace tailrace::distillation_pass_test {
namespace {

using testing::copy;
using testing::metric;
using testing::tiny_trainer;

constexpr int64_t kVocab = 19;

struct Text {
  std::vector<TokenId> tokens;
  std::vector<int32_t> targets;
};

std::vector<Text> random_texts(size_t count) {
  Rng rng(5);
  std::vector<Text> texts;
  for (size_t i = 0; i < count; ++i) {
    Text text;
    const auto prompt = 2 + rng.below(3), length = prompt + 1 + rng.below(6);
    for (int64_t k = 0; k < length; ++k) {
      text.tokens.push_back(static_cast<TokenId>(rng.below(kVocab)));
      // A token in the middle that somebody else wrote is no target.
      if (k >= prompt && (k == prompt || k % 4 != 0))
        text.targets.push_back(static_cast<int32_t>(k));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<PackedSequence> views(const std::vector<Text>& texts, float inv_temperature = 1) {
  std::vector<PackedSequence> views;
  for (const Text& text : texts)
    views.push_back(
        {.tokens = text.tokens, .targets = text.targets, .inv_temperature = inv_temperature});
  return views;
}

// The log-probability of every id at every target of a text: [targets][vocab].
std::vector<std::vector<float>> whole_rows(PolicyTrainer& trainer, const Text& text,
                                           float inv_temperature = 1) {
  std::vector<std::vector<float>> rows;
  for (const int32_t target : text.targets) {
    std::vector<Text> asked;
    for (TokenId id = 0; id < kVocab; ++id) {
      asked.push_back({{text.tokens.begin(), text.tokens.begin() + target}, {target}});
      asked.back().tokens.push_back(id);
    }
    rows.emplace_back();
    for (const auto& logprobs : trainer.score(views(asked, inv_temperature)))
      rows.back().push_back(logprobs[0]);
  }
  return rows;
}

std::vector<TokenId> top(const std::vector<float>& row, size_t k) {
  std::vector<TokenId> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](TokenId a, TokenId b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  ids.resize(k);
  return ids;
}

// What `teacher` says of the texts, with the supports of `by`.
std::vector<TeacherScores> scores_of(PolicyTrainer& teacher, PolicyTrainer& by,
                                     const std::vector<Text>& texts, size_t k,
                                     float inv_temperature = 1) {
  std::vector<TeacherScores> all;
  for (const Text& text : texts) {
    const auto rows = whole_rows(teacher, text, inv_temperature);
    const auto choosing = whole_rows(by, text, inv_temperature);
    TeacherScores scores;
    scores.offsets.push_back(0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto token = static_cast<size_t>(text.tokens[static_cast<size_t>(text.targets[i])]);
      scores.logprobs.push_back(rows[i][token]);
      scores.behaviour.push_back(choosing[i][token] - .05f);
      for (const TokenId id : top(choosing[i], k)) {
        scores.ids.push_back(id);
        scores.id_logprobs.push_back(rows[i][static_cast<size_t>(id)]);
      }
      scores.offsets.push_back(std::ssize(scores.ids));
    }
    all.push_back(std::move(scores));
  }
  return all;
}

MetricList update(PolicyTrainer& trainer, const DistillLossOptions& options,
                  std::span<const PackedSequence> sequences, std::span<const TeacherScores> scores,
                  const Stream& stream = {}) {
  DistillationPass pass(stream, trainer, options, sequences, scores);
  trainer.row_update(sequences, pass, 1);
  return pass.metrics();
}

std::vector<DistillLossOptions> all_losses() {
  using enum DistillLoss;
  std::vector<DistillLossOptions> all = {{.kind = kK2}, {.kind = kK3, .coef = 2}};
  for (const double beta : {0.0, .3, 1.0}) {
    all.push_back({.kind = kJsd, .beta = beta});
    all.push_back({.kind = kJsd, .beta = beta, .tail = false, .renormalize = true});
  }
  all.push_back({.kind = kJsd, .coef = .5, .beta = 0, .tail = false});
  all.push_back({.kind = kJsd, .beta = 1, .support = SupportOf::kStudent});
  return all;
}

std::string told(const DistillLossOptions& o) {
  return fmt::format("{} beta {} tail {} renormalize {}", name_of(o.kind), o.beta, o.tail,
                     o.renormalize);
}

TEST(DistillationPass, HasTheSlopeOfItsLossAsGradient) {
  const std::vector<Text> texts = random_texts(4);
  auto teacher = tiny_trainer({}, {}, {}, 2);
  constexpr float kInvTemperature = .8f;
  for (const bool tied : {false, true}) {
    ModelConfig model = testing::tiny_model();
    model.tie_embeddings = tied;
    for (const DistillLossOptions& options : all_losses()) {
      SCOPED_TRACE(told(options));
      auto student = tiny_trainer({}, testing::kStill, {}, 1, model);
      PolicyTrainer& by = options.support == SupportOf::kTeacher ? *teacher : *student;
      const auto scores = scores_of(*teacher, by, texts, 4, kInvTemperature);
      const auto sequences = views(texts, kInvTemperature);
      update(*student, options, sequences, scores);
      const std::vector<float> gradient = copy(student->gradients().flat());
      Rng rng(4);
      testing::expect_slopes(*student, gradient, rng, [&] {
        return options.coef *
               metric(update(*student, options, sequences, scores), "distillation/loss");
      });
    }
  }
}

// prime-rl's weight sg(t - s) moves with the weights of a difference, so its gradient is compared
// with that of its parts.
TEST(DistillationPass, TheGradientOfRefKlIsThatOfWeightedTargets) {
  const std::vector<Text> texts = random_texts(4);
  auto teacher = tiny_trainer({}, {}, {}, 2), student = tiny_trainer({}, testing::kStill);
  const auto scores = scores_of(*teacher, *student, texts, 4);
  const DistillLossOptions options = {.kind = DistillLoss::kRefKl};
  update(*student, options, views(texts), scores);
  const std::vector<float> gradient = copy(student->gradients().flat());
  const auto at_start = student->score(views(texts));
  const auto loss = [&] {
    const auto now = student->score(views(texts));
    double sum = 0, targets = 0;
    for (size_t i = 0; i < texts.size(); ++i)
      for (size_t k = 0; k < now[i].size(); ++k) {
        const double drift = double{now[i][k]} - double{scores[i].behaviour[k]};
        const double pull = double{scores[i].logprobs[k]} - double{at_start[i][k]};
        sum += -pull * std::exp(drift) + 1e-3 * drift * drift;
        ++targets;
      }
    return sum / targets;
  };
  Rng rng(4);
  testing::expect_slopes(*student, gradient, rng, loss);
}

TEST(DistillationPass, MeasuresWhatWholeRowsOfLogProbabilitiesSay) {
  const std::vector<Text> texts = random_texts(5);
  auto teacher = tiny_trainer({}, {}, {}, 2), student = tiny_trainer({}, testing::kStill);
  const auto scores = scores_of(*teacher, *teacher, texts, 4);
  for (const double beta : {0.0, .5, 1.0}) {
    const DistillLossOptions options = {.kind = DistillLoss::kJsd, .beta = beta};
    double loss = 0, k1 = 0, overlap = 0, student_mass = 0, teacher_mass = 0, targets = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto rows = whole_rows(*student, texts[i]);
      const std::vector<float> own = student->score(views({texts[i]}))[0];
      for (size_t k = 0; k < rows.size(); ++k, ++targets) {
        const auto ids = std::span(scores[i].ids).subspan(4 * k, 4);
        std::vector<double> s, t, slopes(4);
        for (size_t j = 0; j < 4; ++j) {
          s.push_back(rows[k][static_cast<size_t>(ids[j])]);
          t.push_back(scores[i].id_logprobs[4 * k + j]);
        }
        const TokenLoss token = distill_token(options, s, t, slopes);
        loss += token.loss;
        student_mass += token.student_mass;
        teacher_mass += token.teacher_mass;
        overlap += overlap_ratio(ids, top(rows[k], 4));
        k1 += own[k] - scores[i].logprobs[k];
      }
    }
    const MetricList found = update(*student, options, views(texts), scores);
    // A float's log-probability of about 3 is off by 2e-7, to either side.
    EXPECT_NEAR(metric(found, "distillation/loss"), loss / targets, 1e-6);
    EXPECT_NEAR(metric(found, "distillation/teacher_kl"), k1 / targets, 1e-6);
    EXPECT_NEAR(metric(found, "distillation/student_mass"), student_mass / targets, 1e-6);
    EXPECT_NEAR(metric(found, "distillation/teacher_mass"), teacher_mass / targets, 1e-6);
    EXPECT_EQ(metric(found, "distillation/overlap_ratio"), overlap / targets);
  }
}

// Where the whole vocabulary is the support, the loss is the divergence of the distributions, and
// training drives all of them to nothing.
TEST(DistillationPass, LearnsItsTeacher) {
  const std::vector<Text> texts = random_texts(6);
  auto teacher = tiny_trainer({}, {}, {}, 2);
  const auto scores = scores_of(*teacher, *teacher, texts, kVocab);
  for (const double beta : {0.0, .5, 1.0}) {
    auto student = tiny_trainer({}, {.lr = 1e-2});
    const DistillLossOptions options = {.kind = DistillLoss::kJsd, .beta = beta};
    const double first =
        metric(update(*student, options, views(texts), scores), "distillation/loss");
    MetricList last;
    for (int i = 0; i < 60; ++i) last = update(*student, options, views(texts), scores);
    EXPECT_LT(metric(last, "distillation/loss"), .05 * first) << beta;
    EXPECT_NEAR(metric(last, "distillation/student_mass"), 1, 1e-6);
    EXPECT_EQ(metric(last, "distillation/overlap_ratio"), 1);
  }
}

TEST(DistillationPass, AnAdapterHasTheSlopesOfItsLossBesideAFrozenHead) {
  const std::vector<Text> texts = random_texts(4);
  ModelConfig model = testing::tiny_model();
  model.lora = {.rank = 4, .alpha = 8, .targets = {LoraTarget::kQ, LoraTarget::kV}};
  auto teacher = tiny_trainer({}, {}, {}, 2), base = tiny_trainer({});
  PolicyTrainer student(Stream{}, model, {}, testing::kMaxSequenceTokens, {}, base->packed());
  Rng rng(4);
  for (float& w : student.parameters().flat()) w = .3f * static_cast<float>(rng.normal());
  student.weights_changed();
  student.reset_optimizer(testing::kStill);
  const auto scores = scores_of(*teacher, *teacher, texts, 4);
  const DistillLossOptions options = {.kind = DistillLoss::kJsd};
  update(student, options, views(texts), scores);
  const std::vector<float> gradient = copy(student.gradients().flat());
  const auto loss = [&] {
    return metric(update(student, options, views(texts), scores), "distillation/loss");
  };
  // Along its whole gradient, at which no direction of chance can be small.
  double norm = 0;
  for (const float g : gradient) norm += double{g} * double{g};
  norm = std::sqrt(norm);
  const std::vector<float> before = copy(student.parameters().flat());
  constexpr double kStep = 2e-3;
  const auto at = [&](double step) {
    for (size_t i = 0; i < before.size(); ++i)
      student.parameters().flat()[i] = static_cast<float>(before[i] + step * gradient[i] / norm);
    student.weights_changed();
    return loss();
  };
  // A loss of 1e-2 carries about 1e-8 of float32.
  EXPECT_NEAR((at(kStep) - at(-kStep)) / (2 * kStep), norm, 1e-5 + .01 * norm);
  EXPECT_GT(norm, 1e-3);
}

TEST(DistillationPass, AnyNumberOfRanksTrainsTheSameWeights) {
  const std::vector<Text> texts = random_texts(9);
  auto teacher = tiny_trainer({}, {}, {}, 2);
  const auto scores = scores_of(*teacher, *teacher, texts, 5);
  const auto work = [&](Collective* ranks) {
    ThreadPool pool(ranks == nullptr ? 1 : ranks->rank() + 1);
    const Stream stream{{}, &pool, nullptr};
    auto student =
        tiny_trainer({.microbatch_tokens = 100, .gradient_slots = 4}, {.lr = 1e-2}, stream);
    student->join(ranks);
    MetricList last;
    for (int i = 0; i < 3; ++i)
      last = update(*student, {.kind = DistillLoss::kJsd}, views(texts), scores, stream);
    return std::tuple(last, copy(student->parameters().flat()));
  };
  const auto alone = work(nullptr);
  for (const int size : {2, 4})
    for (const auto& rank : testing::on_ranks(size, work)) EXPECT_EQ(rank, alone) << size;
}

TEST(DistillationPass, MicroBatchesMoveTheLastDigitsAlone) {
  const std::vector<Text> texts = random_texts(9);
  auto teacher = tiny_trainer({}, {}, {}, 2);
  const auto scores = scores_of(*teacher, *teacher, texts, 5);
  const auto work = [&](int64_t microbatch_tokens) {
    auto student = tiny_trainer({.microbatch_tokens = microbatch_tokens}, testing::kStill);
    const MetricList metrics = update(*student, {.kind = DistillLoss::kJsd}, views(texts), scores);
    return std::pair(metrics, copy(student->gradients().flat()));
  };
  const auto whole = work(1000), cut = work(16);
  EXPECT_EQ(whole.first, cut.first);
  double most = 0;
  for (const float x : whole.second) most = std::max(most, std::abs(double{x}));
  // Float sums of a few dozen terms in another order.
  for (size_t i = 0; i < whole.second.size(); ++i)
    ASSERT_NEAR(whole.second[i], cut.second[i], 1e-5 * most) << i;
}

TEST(DistillationPass, SaysWhyScoresAreOfNoUse) {
  const DistillLossOptions jsd = {.kind = DistillLoss::kJsd};
  const TeacherScores good = {.logprobs = {-1, -2},
                              .offsets = {0, 2, 3},
                              .ids = {4, 0, 18},
                              .id_logprobs = {-1, -2, -3},
                              .behaviour = {}};
  const auto told_of = [&](auto change, const DistillLossOptions& options) {
    TeacherScores scores = good;
    change(scores);
    const Result<void> result = check_scores(scores, options, 2, kVocab);
    return result.ok() ? "" : result.failure().message;
  };
  const auto told = [&](auto change) { return told_of(change, jsd); };
  const auto nothing = [](TeacherScores&) {};
  EXPECT_EQ(told(nothing), "");
  EXPECT_EQ(told([](auto& s) { s.logprobs.pop_back(); }), "1 log-probabilities of 2 targets");
  EXPECT_EQ(told([](auto& s) { s.offsets.clear(); }),
            "0 offsets, 3 ids and 3 log-probabilities of 2 targets");
  EXPECT_EQ(told([](auto& s) { s.id_logprobs.push_back(-1); }),
            "3 offsets, 3 ids and 4 log-probabilities of 2 targets");
  EXPECT_EQ(told([](auto& s) { s.offsets = {0, 3, 3}; }), "target 1 has a support without tokens");
  EXPECT_EQ(told([](auto& s) { s.offsets = {0, 9, 3}; }), "target 1 has a support without tokens");
  EXPECT_EQ(told([](auto& s) { s.ids[2] = 19; }),
            "target 1 has the ids 19 to 19, and the student has 19");
  EXPECT_EQ(told([](auto& s) { s.ids[0] = -1; }),
            "target 0 has the ids -1 to 0, and the student has 19");
  EXPECT_EQ(told([](auto& s) { s.ids[1] = 4; }), "target 0 has the id 4 twice");
  for (const float wrong : {.5f, std::nanf(""), -std::numeric_limits<float>::infinity()})
    EXPECT_EQ(told([&](auto& s) { s.id_logprobs[1] = wrong; }),
              "a number that is no logarithm of a probability");
  EXPECT_EQ(told_of([](auto& s) { s.offsets.clear(); }, {.kind = DistillLoss::kK3}), "");
  EXPECT_EQ(told_of(nothing, {.kind = DistillLoss::kRefKl}),
            "0 log-probabilities of the policy that sampled 2 targets");
}

}  // namespace
}  // namespace tailrace::distillation_pass_test
