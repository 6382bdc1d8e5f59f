// The trainer on the GPU of this program: it learns what the CPU's learns, and its scores are those
// of a pass of its own in any packing.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/backend.h"
#include "kernels/cuda/provide.h"
#ifdef TAILRACE_EMULATED_GPU
#include "kernels/cuda/host/waits.h"
#endif
#include "tests/trainer/fixtures.h"
#include "tests/trainer/random_preferences.h"
#include "trainer/policy_trainer.h"
#include "trainer/preference.h"

namespace tailrace {
namespace {

using testing::loss_config;
using testing::make_batch;
using testing::metric;

constexpr Device kDeviceOfTests{DeviceKind::kCuda, 0};

Stream device_stream() {
  static const bool provided = [] {
    provide_cuda();
    return true;
  }();
  static_cast<void>(provided);
  return {.device = kDeviceOfTests};
}

// Of heads that bfloat16 takes.
ModelConfig wide_heads(bool sparse) {
  ModelConfig config = sparse ? testing::sparse_model() : testing::tiny_model();
  config.hidden_size = 32;
  config.head_dim = 8;
  config.qk_norm = true;
  return config;
}

struct DeviceCase {
  std::string name;
  bool sparse = false;
  Dtype compute = Dtype::kF32;
  TrainOptions train = {.gradient_slots = 2};
};

std::unique_ptr<PolicyTrainer> trainer_on(Stream stream, const DeviceCase& how) {
  auto trainer = std::make_unique<PolicyTrainer>(stream, wide_heads(how.sparse), how.train,
                                                 testing::kMaxSequenceTokens, how.compute);
  init_parameters(trainer->model().config(), 1, trainer->parameters());
  trainer->weights_changed();
  trainer->reset_optimizer({.lr = 1e-3});
  return trainer;
}

std::vector<float> weights_of(PolicyTrainer& trainer) {
  const auto flat = trainer.parameters().flat();
  return {flat.begin(), flat.end()};
}

// Steps of a trainer, each on trajectories of its own; metrics of the last one.
MetricList learn(PolicyTrainer& trainer, int steps, PolicyLossConfig loss = loss_config()) {
  MetricList metrics;
  for (int step = 0; step < steps; ++step) {
    auto trajectories = testing::random_trajectories(3, static_cast<uint64_t>(10 + step));
    testing::truncate(trajectories);
    TrainBatch batch = make_batch(trajectories);
    metrics = trainer.policy_step(batch, step, loss);
  }
  return metrics;
}

class TrainerOnDevice : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(TrainerOnDevice, LearnsWhatTheCpuLearns) {
  const DeviceCase& how = GetParam();
  const auto on_cpu = trainer_on({}, how), on_device = trainer_on(device_stream(), how);
  const std::vector<float> start = weights_of(*on_cpu);
  ASSERT_EQ(weights_of(*on_device), start);
  const MetricList want = learn(*on_cpu, 3), got = learn(*on_device, 3);
  const bool rounds = how.compute == Dtype::kBF16;
  for (const char* name : {"policy/loss", "policy/grad_norm", "policy/entropy"}) {
    const double expected = metric(want, name);
    EXPECT_NEAR(metric(got, name), expected, (rounds ? 4e-2 : 1e-4) * (std::abs(expected) + 0.1))
        << name;
  }
  // AdamW goes as far whatever the gradient's size: where that is next to 0, its sign decides.
  const std::vector<float> a = weights_of(*on_cpu), b = weights_of(*on_device);
  double moved = 0, apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    moved += std::pow(double{a[i]} - start[i], 2);
    apart += std::pow(double{a[i]} - b[i], 2);
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(std::sqrt(apart / moved), rounds ? 0.25 : 0.02);
}

TEST_P(TrainerOnDevice, TheSameStepsGiveTheSameBits) {
  const auto one = trainer_on(device_stream(), GetParam());
  const auto other = trainer_on(device_stream(), GetParam());
  (void)learn(*one, 2);
  (void)learn(*other, 2);
  EXPECT_EQ(weights_of(*one), weights_of(*other));
}

TEST_P(TrainerOnDevice, ScoresAreTheSameBitsInAnyPacking) {
  DeviceCase how = GetParam();
  const TrainBatch batch = make_batch(testing::random_trajectories(3, 1));
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  const auto whole = trainer_on(device_stream(), how)->score(sequences);
  for (const int64_t tokens : {1, 20, 50}) {
    how.train.microbatch_tokens = tokens;
    EXPECT_EQ(trainer_on(device_stream(), how)->score(sequences), whole) << tokens;
  }
}

// A pass that keeps its activations has the bits of one that does not (design rule 3).
TEST_P(TrainerOnDevice, ItsOwnSamplesHaveNoMismatchAtAll) {
  const auto trainer = trainer_on(device_stream(), GetParam());
  auto trajectories = testing::random_trajectories(4, 2);
  testing::record_logprobs(*trainer, trajectories);
  TrainBatch batch = make_batch(trajectories);
  const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
  EXPECT_EQ(metric(metrics, "mismatch/max_logprob_diff"), 0);
  EXPECT_EQ(metric(metrics, "mismatch/max_ratio"), 1);
}

TEST_P(TrainerOnDevice, GoesOnFromWhatItSaved) {
  const TemporaryDirectory folder;
  const auto first = trainer_on(device_stream(), GetParam());
  const auto second = trainer_on(device_stream(), GetParam());
  (void)learn(*first, 1);
  first->optimizer().save(folder.path() / "moments");
  std::ranges::copy(weights_of(*first), second->parameters().flat().begin());
  second->weights_changed();
  second->optimizer().load(folder.path() / "moments");
  (void)learn(*first, 1);
  (void)learn(*second, 1);
  EXPECT_EQ(second->optimizer().updates(), 2);
  EXPECT_EQ(weights_of(*second), weights_of(*first));
}

TEST_P(TrainerOnDevice, AGradientThatIsNotFiniteChangesNothing) {
  const auto trainer = trainer_on(device_stream(), GetParam());
  trainer->parameters().flat()[0] = std::nanf("");
  trainer->weights_changed();
  const std::vector<float> before = weights_of(*trainer);
  TrainBatch batch = make_batch(testing::random_trajectories(2, 3));
  const MetricList metrics = trainer->policy_step(batch, 0, loss_config());
  EXPECT_EQ(trainer->optimizer().skipped(), trainer->optimizer().tries());
  const std::vector<float> after = weights_of(*trainer);
  EXPECT_TRUE(
      std::ranges::equal(std::as_bytes(std::span(before)), std::as_bytes(std::span(after)), {}));
}

INSTANTIATE_TEST_SUITE_P(
    Models, TrainerOnDevice,
    ::testing::Values(DeviceCase{.name = "DenseF32"},
                      DeviceCase{.name = "DenseBf16", .compute = Dtype::kBF16},
                      DeviceCase{.name = "SparseF32", .sparse = true},
                      DeviceCase{.name = "SparseBf16", .sparse = true, .compute = Dtype::kBF16}),
    [](const auto& test) { return test.param.name; });

// Supervised steps, and what they are measured by.
TEST(TrainerOnDevice, SupervisedStepsLowerTheLoss) {
  const auto trainer = trainer_on(device_stream(), {.name = "", .compute = Dtype::kBF16});
  const TrainBatch batch = make_batch(testing::random_trajectories(2, 5));
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  const double first = metric(trainer->sft_update(sequences), "sft/loss");
  for (int i = 0; i < 5; ++i) (void)trainer->sft_update(sequences);
  const MetricList measured = trainer->sft_evaluation(sequences);
  EXPECT_LT(metric(measured, "sft/eval_loss"), first);
  EXPECT_GE(metric(measured, "sft/eval_token_accuracy"), 0);
}

// The loss of pairs is the host's, whatever computes the log-probabilities.
TEST(TrainerOnDevice, PreferencesAreLearnedAsOnTheCpu) {
  const std::vector<PreferenceRow> rows = testing::random_pairs(6);
  PreferenceOptions options;
  options.optim.lr = 1e-2;
  options.epochs = 4;
  std::vector<double> losses[2];
  for (const bool on_device : {false, true}) {
    const auto trainer = trainer_on(on_device ? device_stream() : Stream{}, {.name = ""});
    PreferenceTask task(*trainer, options, rows, {}, 1);
    task.set_reference(*task.score_reference());
    while (const auto metrics = task.update())
      losses[on_device ? 1 : 0].push_back(metric(*metrics, "preference/loss"));
  }
  ASSERT_EQ(losses[0].size(), 4u);
  EXPECT_NEAR(losses[1].front(), std::log(2), 1e-6);
  EXPECT_LT(losses[1].back(), 0.6);
  for (size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-3);
}

// Somebody who watches changes nothing.
TEST(TrainerOnDevice, AWatcherHearsWhatTheLossReads) {
  const auto quiet = trainer_on(device_stream(), {.name = ""});
  const auto watched = trainer_on(device_stream(), {.name = ""});
  TrainBatch batch = make_batch(testing::random_trajectories(3, 6));
  std::vector<PackedSequence> sequences;
  for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
  const auto scores = watched->score(sequences);
  size_t heard = 0;
  watched->watch_logprobs([&](const TrainSequence&, std::span<const float> logprobs) {
    ASSERT_LT(heard, scores.size());
    EXPECT_TRUE(std::ranges::equal(logprobs, scores[heard++]));
  });
  TrainBatch same = batch;
  (void)quiet->policy_step(batch, 0, loss_config());
  (void)watched->policy_step(same, 0, loss_config());
  EXPECT_EQ(heard, scores.size());
  EXPECT_EQ(weights_of(*quiet), weights_of(*watched));
}

TEST(TrainerOnDevice, AStepThatStreamsLearnsWhatTheCpuLearns) {
  std::vector<MetricList> metrics;
  for (const Stream& stream : {Stream{}, device_stream()}) {
    const auto trainer = trainer_on(stream, {.name = "", .sparse = true});
    TrainStep step = trainer->begin_step(/*gathers=*/true);
    for (const uint64_t seed : {7, 8})
      step.add(make_batch(testing::random_trajectories(2, seed)), 0, loss_config());
    metrics.push_back(step.finish(0, loss_config()));
  }
  for (const char* name : {"policy/loss", "policy/grad_norm", "policy/entropy", "policy/kl_old",
                           "policy/ratio_max", "experts/balance_loss", "experts/load_max"})
    EXPECT_NEAR(metric(metrics[1], name), metric(metrics[0], name), 1e-4) << name;
}

#ifdef TAILRACE_EMULATED_GPU
// Waits in which a GPU would have no work. Micro-batches and updates ask for theirs and go on; at
// the end of the step the host reads what they measured.
struct Waits {
  int64_t idle = 0, busy = 0;
};
template <class Work>
Waits waits_of(const Work& work) {
  const auto before = cuda::emulation::host_waits();
  work();
  const auto after = cuda::emulation::host_waits();
  return {after.idle - before.idle, after.busy - before.busy};
}

TEST_P(TrainerOnDevice, WaitsForNoMicroBatchAndForNoUpdate) {
  for (const int64_t tokens : {1, 4096}) {
    DeviceCase how = GetParam();
    how.train.microbatch_tokens = tokens;
    how.train.ppo_epochs = 2;
    how.train.minibatches_per_step = 2;
    const auto trainer = trainer_on(device_stream(), how);
    auto trajectories = testing::random_trajectories(6, 4);
    testing::record_logprobs(*trainer, trajectories);
    TrainBatch batch = make_batch(trajectories);
    MetricList metrics;
    const Waits policy = waits_of([&] { metrics = trainer->policy_step(batch, 0, loss_config()); });
    EXPECT_GT(metric(metrics, "policy/updates"), 1);
    // For the reports of the optimizer, for those of the loss, and for the forward pass behind the
    // last update that says how far the step moved the policy; the loads of experts are there then.
    EXPECT_LE(policy.idle, 3);
    EXPECT_GT(policy.busy, 0);

    std::vector<PackedSequence> sequences;
    for (const TrainSequence& s : batch.sequences) sequences.push_back(s.packed());
    const Waits supervised = waits_of([&] { (void)trainer->sft_update(sequences); });
    EXPECT_LE(supervised.idle, 2);
  }
}
#endif

}  // namespace
}  // namespace tailrace
