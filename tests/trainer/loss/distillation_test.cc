// The losses of distillation: goldens in double precision from the papers' formulas (made outside
// of this project), gradients with each of the clamps, limits, and the keys that a loss reads.
#include "trainer/loss/distillation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"
#include "tests/core/base/enum_contract.h"

// Its own namespace, since tests of several losses are compiled as one file.
namespace tailrace::distillation_test {
namespace {

using enum DistillLoss;
using Options = DistillLossOptions;

std::vector<double> log_softmax(const std::vector<double>& logits) {
  double sum = 0;
  for (const double z : logits) sum += std::exp(z);
  std::vector<double> logs;
  for (const double z : logits) logs.push_back(z - std::log(sum));
  return logs;
}

const std::vector<double> kStudent = log_softmax({1, .5, -.5, -1});
const std::vector<double> kTeacher = log_softmax({2, 0, -1.5, .5});
const std::vector<size_t> kAll = {0, 1, 2, 3}, kTopOfTeacher = {0, 3}, kTopOfStudent = {0, 1};

std::vector<double> at(const std::vector<double>& logs, const std::vector<size_t>& support) {
  std::vector<double> some;
  for (const size_t i : support) some.push_back(logs[i]);
  return some;
}

std::vector<double> rounded(std::vector<double> logs) {
  for (double& x : logs) x = static_cast<float>(x);
  return logs;
}

TokenLoss token(const Options& options, const std::vector<double>& student,
                const std::vector<double>& teacher) {
  std::vector<double> slopes(student.size());
  return distill_token(options, student, teacher, slopes);
}

// The divergence alone, with all that shapes it but the clamps.
Options jsd(double beta, bool tail = false, bool renormalize = false) {
  return {.kind = kJsd, .beta = beta, .tail = tail, .renormalize = renormalize};
}

std::string told(const Options& options) {
  std::string text = print_config(options);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

struct Golden {
  Options options;
  std::vector<size_t> support;
  double loss;
};

std::vector<Golden> goldens() {
  return {{jsd(0), kAll, 0.237811696518},
          {jsd(1), kAll, 0.308520860618},
          {jsd(.5), kAll, 0.064482796208},
          {jsd(.1), kAll, 0.021641199087},
          {jsd(0), kTopOfTeacher, 0.386107735321},
          {jsd(0, true), kTopOfTeacher, 0.235351867022},
          {jsd(0, false, true), kTopOfTeacher, 0.016727494963},
          {jsd(1, false, true), kTopOfTeacher, 0.014883805929},
          {jsd(1, true), kTopOfStudent, 0.179181281928},
          {jsd(1, false, true), kTopOfStudent, 0.219162030060}};
}

// `near`: compares a number with its golden.
template <class Near>
void check_goldens(const std::vector<double>& student, const std::vector<double>& teacher,
                   const Near& near) {
  for (const auto& [options, support, loss] : goldens())
    near(token(options, at(student, support), at(teacher, support)).loss, loss, told(options));
  const DistillEstimates estimates = distill_estimates(student[0], teacher[0]);
  near(estimates.k1, -0.347148973137, "k1");
  near(estimates.k2, 0.060256204775, "k2");
  near(estimates.k3, 0.067878537620, "k3");
  const SampledLogprobs sampled = {
      .student = student[0], .teacher = teacher[0], .behaviour = student[0] - .05};
  near(distill_sampled({.kind = kK2}, sampled).loss, 0.060256204775, "k2 as a loss");
  near(distill_sampled({.kind = kK3}, sampled).loss, 0.067878537620, "k3 as a loss");
  near(distill_sampled({.kind = kRefKl}, sampled).loss, -0.364945181596, "prime-rl");
  const TokenLoss masses = token(jsd(0), at(student, kTopOfTeacher), at(teacher, kTopOfTeacher));
  near(masses.student_mass, 0.577779915923, "student's mass");
  near(masses.teacher_mass, 0.880797077978, "teacher's mass");
}

TEST(Distillation, LossesMatchTheirGoldens) {
  check_goldens(kStudent, kTeacher, [](double found, double golden, const std::string& what) {
    EXPECT_NEAR(found, golden, 1e-9) << what;
  });
  EXPECT_EQ(overlap_ratio(std::vector<int32_t>{0, 3}, std::vector<int32_t>{1, 0}), .5);
}

// A float is off by 6e-8 of its value, a log-probability here is at most 4, and no loss multiplies
// the difference of two by more than 8 of its own size.
TEST(Distillation, GoldensHoldFromInputsThatAreFloats) {
  check_goldens(rounded(kStudent), rounded(kTeacher),
                [](double found, double golden, const std::string& what) {
                  EXPECT_NEAR(found, golden, 2e-6 * std::abs(golden)) << what;
                });
}

TEST(Distillation, TheEndsOfBetaAreTheTwoDivergences) {
  double forward = 0, reverse = 0;
  for (const size_t i : kAll) {
    forward += std::exp(kTeacher[i]) * (kTeacher[i] - kStudent[i]);
    reverse += std::exp(kStudent[i]) * (kStudent[i] - kTeacher[i]);
  }
  EXPECT_NEAR(token(jsd(0), kStudent, kTeacher).loss, forward, 1e-15);
  EXPECT_NEAR(token(jsd(1), kStudent, kTeacher).loss, reverse, 1e-15);
  // Between them the sum goes to 0 with beta, times the divergence of that end.
  EXPECT_NEAR(token(jsd(1e-7), kStudent, kTeacher).loss / 1e-7, forward, 1e-6);
  EXPECT_NEAR(token(jsd(1 - 1e-7), kStudent, kTeacher).loss / 1e-7, reverse, 1e-6);
}

TEST(Distillation, AWholeVocabularyHasNoTailAndNoCondition) {
  for (const double beta : {0.0, .1, .5, 1.0}) {
    const double whole = token(jsd(beta), kStudent, kTeacher).loss;
    for (const double clamp : {0.0, -10.0}) {
      for (const bool tail : {false, true}) {
        Options options = jsd(beta, tail, !tail);
        options.log_prob_min_clamp = clamp;
        EXPECT_NEAR(token(options, kStudent, kTeacher).loss, whole, 1e-12) << told(options);
      }
    }
  }
}

TEST(Distillation, AlikeIsAMinimum) {
  const std::vector<double> some = at(kTeacher, kTopOfTeacher);
  for (const double beta : {0.0, .1, .5, 1.0}) {
    for (const bool tail : {false, true}) {
      std::vector<double> slopes(2);
      EXPECT_NEAR(distill_token(jsd(beta, tail, !tail), some, some, slopes).loss, 0, 1e-15);
      for (const double slope : slopes) EXPECT_NEAR(slope, 0, 1e-15) << beta << ' ' << tail;
    }
  }
}

TEST(Distillation, ConditioningADistributionWithATailChangesNothing) {
  const auto student = at(kStudent, kTopOfTeacher), teacher = at(kTeacher, kTopOfTeacher);
  EXPECT_EQ(token(jsd(.5, true, true), student, teacher).loss,
            token(jsd(.5, true), student, teacher).loss);
}

// Central differences at a step h are off by h^2 and by the loss's last digit over h.
constexpr double kSlopeStep = 1e-5;
constexpr double kSlopeError = 1e-8;

void expect_slopes(const Options& options, const std::vector<double>& student,
                   const std::vector<double>& teacher) {
  std::vector<double> slopes(student.size());
  distill_token(options, student, teacher, slopes);
  for (size_t i = 0; i < student.size(); ++i) {
    std::vector<double> up = student, down = student;
    up[i] += kSlopeStep, down[i] -= kSlopeStep;
    const double slope =
        (token(options, up, teacher).loss - token(options, down, teacher).loss) / (2 * kSlopeStep);
    EXPECT_NEAR(slopes[i], slope, kSlopeError * (1 + std::abs(slope)))
        << told(options) << " token " << i;
  }
}

TEST(Distillation, GradientsMatchFiniteDifferences) {
  Rng rng(3);
  const auto random_support = [&](double mass) {
    std::vector<double> logs;
    for (int i = 0; i < 4; ++i) logs.push_back(rng.normal());
    logs = log_softmax(logs);
    for (double& x : logs) x += std::log(mass);
    return logs;
  };
  for (const double beta : {0.0, .1, .5, 1.0})
    for (const bool tail : {false, true})
      for (const bool renormalize : {false, true})
        // A clamp of -2 cuts some of the logarithms, and one of .1 many of the losses.
        for (const double least : {0.0, -2.0, -10.0})
          for (const double most : {0.0, .1, 10.0})
            for (int draw = 0; draw < 3; ++draw) {
              Options options = jsd(beta, tail, renormalize);
              options.log_prob_min_clamp = least;
              options.loss_max_clamp = most;
              const auto student = random_support(.7), teacher = random_support(.9);
              expect_slopes(options, student, teacher);
            }
}

TEST(Distillation, AtABoundThereIsStillAGradient) {
  const auto student = at(kStudent, kTopOfTeacher), teacher = at(kTeacher, kTopOfTeacher);
  std::vector<double> free(2), bound(2), cut(2);
  Options options = jsd(.5);
  options.log_prob_min_clamp = options.loss_max_clamp = 0;
  const double loss = distill_token(options, student, teacher, free).loss;
  options.log_prob_min_clamp = student[1];
  options.loss_max_clamp = std::abs(loss);
  EXPECT_EQ(distill_token(options, student, teacher, bound).loss, loss);
  EXPECT_EQ(bound, free);
  options.log_prob_min_clamp = std::nextafter(student[1], 0.0);
  options.loss_max_clamp = 0;
  distill_token(options, student, teacher, cut);
  EXPECT_EQ(cut[1], 0);
  EXPECT_NEAR(cut[0], free[0], 1e-15);
  options.log_prob_min_clamp = 0;
  options.loss_max_clamp = std::nextafter(std::abs(loss), 0.0);
  EXPECT_EQ(std::abs(distill_token(options, student, teacher, cut).loss), options.loss_max_clamp);
  EXPECT_EQ(cut, std::vector<double>(2));
}

// Over a part of the vocabulary the sum may be below 0, and is cut there too.
TEST(Distillation, AnOpenSumIsCutOnBothSides) {
  Options options = jsd(0);
  options.loss_max_clamp = .1;
  EXPECT_EQ(token(options, {std::log(.9)}, {std::log(.3)}).loss, -.1);
  EXPECT_EQ(token(options, {std::log(.3)}, {std::log(.9)}).loss, .1);
}

TEST(Distillation, GradientsOfSampledTokensMatchFiniteDifferences) {
  for (const DistillLoss kind : {kK2, kK3, kRefKl})
    for (const double least : {0.0, -2.0, -10.0})
      for (const double most : {0.0, .1, 10.0})
        for (const double student : {-.05, -1.2, -3.0, -12.0})
          for (const double teacher : {-.3, -2.5, -11.0}) {
            const Options options = {
                .kind = kind, .log_prob_min_clamp = least, .loss_max_clamp = most};
            const auto loss = [&](double s) {
              // prime-rl's weight sg(t - s) is fixed, and a difference of its loss would move it.
              const double fixed = kind == kRefKl ? s - student : 0;
              return distill_sampled(
                  options, {.student = s, .teacher = teacher + fixed, .behaviour = student + .05});
            };
            const double slope =
                (loss(student + kSlopeStep).loss - loss(student - kSlopeStep).loss) /
                (2 * kSlopeStep);
            EXPECT_NEAR(loss(student).dstudent, slope, 1e-7 * (1 + std::abs(slope)))
                << told(options) << ' ' << student << ' ' << teacher;
          }
}

TEST(Distillation, PrimeRlLeavesOutTokensThatBecameMuchLessLikely) {
  const auto loss = [](double student) {
    return distill_sampled(
        {.kind = kRefKl}, {.student = std::log(student), .teacher = -1, .behaviour = std::log(.5)});
  };
  const double drift = std::log(.29) - std::log(.5);
  EXPECT_NEAR(loss(.29).loss, 1e-3 * drift * drift, 1e-15);
  EXPECT_NEAR(loss(.29).dstudent, 2e-3 * drift, 1e-15);
  EXPECT_LT(loss(.31).loss, -.1) << "kept";
}

TEST(Distillation, EveryFiniteInputGivesAFiniteLoss) {
  const std::vector<double> far = {0, -1e-300, -1e-9, -1e-3, -40, -800, -5000};
  for (const double beta : {0.0, .1, 1.0})
    for (const bool tail : {false, true})
      for (const bool renormalize : {false, true})
        for (const double s : far)
          for (const double t : far) {
            Options options = jsd(beta, tail, renormalize);
            options.log_prob_min_clamp = options.loss_max_clamp = 0;
            std::vector<double> slopes(2);
            const double loss =
                distill_token(options, std::vector{s, -2.0}, std::vector{t, -2.5}, slopes).loss;
            ASSERT_TRUE(std::isfinite(loss) && std::isfinite(slopes[0]) && std::isfinite(slopes[1]))
                << told(options) << ' ' << s << ' ' << t;
          }
  for (const DistillLoss kind : {kK2, kK3, kRefKl})
    for (const double s : far)
      for (const double t : far) {
        const SampledLoss found = distill_sampled(
            {.kind = kind, .log_prob_min_clamp = 0, .loss_max_clamp = 0}, {s, t, -800});
        ASSERT_TRUE(std::isfinite(found.loss) && std::isfinite(found.dstudent)) << s << ' ' << t;
      }
}

TEST(Distillation, AdvantagesLoseTheTermsOfTheirTokenAndOfLaterOnes) {
  const std::vector<double> behaviour = {-1, -2, -.5}, teacher = {-.5, -3, -1.5};
  const auto advantages = [&](double coef, double discount) {
    std::vector<double> found = {1, 1, -1};
    distill_advantages({.coef = coef, .discount = discount}, behaviour, teacher, found);
    return found;
  };
  EXPECT_EQ(advantages(1, 0), (std::vector<double>{1.5, 0, -2}));
  EXPECT_EQ(advantages(.5, 0), (std::vector<double>{1.25, .5, -1.5}));
  // The terms are -.5, 1 and 1: with half of what follows they are .25, 1.5 and 1.
  EXPECT_EQ(advantages(1, .5), (std::vector<double>{.75, -.5, -2}));
  EXPECT_EQ(advantages(1, 1), (std::vector<double>{-.5, -1, -2}));
}

TEST(Distillation, OverlapCountsTheTokensOfBoth) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(overlap_ratio(Ids{3, 1, 2}, Ids{2, 3, 1}), 1);
  EXPECT_EQ(overlap_ratio(Ids{3, 1, 2, 9}, Ids{5, 6, 2, 7}), .25);
  EXPECT_EQ(overlap_ratio(Ids{4}, Ids{5}), 0);
}

TEST(Distillation, EveryLossAndEverySupportHasAName) {
  check_enum_names<DistillLoss>();
  check_enum_names<SupportOf>();
}

// Why nothing reads the key; empty where something does.
std::string idle(const Options& options, const std::string& key) {
  for (const SectionDoc& section : describe_options(options))
    for (const OptionDoc& option : section.options)
      if (option.key == key) return option.idle.reason;
  return "no such key";
}

TEST(Distillation, KeysThatTheLossDoesNotReadAreIdle) {
  for (const auto& [key, readers] : std::vector<std::pair<std::string, std::vector<DistillLoss>>>{
           {"coef", {kPolicyGradient, kJsd, kK2, kK3, kRefKl}},
           {"beta", {kJsd}},
           {"top_k", {kJsd}},
           {"support", {kJsd}},
           {"tail", {kJsd}},
           {"discount", {kPolicyGradient}},
           {"log_prob_min_clamp", {kJsd, kK2, kK3}},
           {"loss_max_clamp", {kJsd, kK2, kK3}}}) {
    for (size_t i = 0; i < kEnumNames<DistillLoss>.size(); ++i) {
      const auto kind = static_cast<DistillLoss>(i);
      const bool reads = std::ranges::find(readers, kind) != readers.end();
      EXPECT_EQ(idle({.kind = kind}, key).empty(), reads) << name_of(kind) << ' ' << key;
    }
  }
  EXPECT_EQ(idle(jsd(.5, true), "renormalize"), "tail is true");
  EXPECT_EQ(idle(jsd(.5, false), "renormalize"), "");
  EXPECT_EQ(idle({.kind = kK3}, "renormalize"), "loss is k3, which has no support");
}

std::string refused(const Options& options) {
  try {
    validate(options, "distill");
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Distillation, ValidateRefusesAReverseDivergenceOverAPart) {
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused(jsd(0)), "");
  EXPECT_EQ(refused(jsd(1, true)), "");
  EXPECT_EQ(refused(jsd(1, false, true)), "");
  EXPECT_EQ(refused({.kind = kK2, .beta = 1, .tail = false}), "");
  EXPECT_EQ(refused(jsd(1)),
            "distill.beta is 1 with neither tail nor renormalize; a reverse divergence over a part "
            "of the vocabulary takes probability away from it. Try tail = true.");
  // Why: it pushes a student down that is its teacher.
  std::vector<double> slopes(1);
  distill_token(jsd(1), std::vector{-1.0}, std::vector{-1.0}, slopes);
  EXPECT_GT(slopes[0], 0);
}

// A file that says `loss: NAME`.
std::string read_error(const std::string& name) {
  try {
    Options options;
    bind_config(parse_config("loss: " + name + "\n", "run.yaml", {}), options);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(Distillation, NamesFromElsewhereAreToldWhatTheyAreHere) {
  EXPECT_NE(read_error("k1").find("knows nothing of the teacher"), std::string::npos)
      << read_error("k1");
  EXPECT_NE(read_error("reverse_kl").find("jsd with beta 1"), std::string::npos);
  EXPECT_EQ(read_error("gkd"), "");
}

TEST(DistillationDeathTest, EachLossTakesItsOwnKindOfData) {
  std::vector<double> slopes(1);
  EXPECT_DEATH(distill_token({.kind = kK3}, std::vector{-1.0}, std::vector{-1.0}, slopes),
               "k3 has no support");
  EXPECT_DEATH(distill_token(jsd(0), {}, {}, {}), "0 and 0 tokens");
  EXPECT_DEATH(distill_sampled({.kind = kJsd}, {}), "jsd is no loss of the sampled token");
}

}  // namespace
}  // namespace tailrace::distillation_test
