// An engine that samples all the time while versions are staged and installed: what it says
// afterwards has the bits of an engine that never knew another version.
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "rollout/worker/weight_stage.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/rollout/engine/engine_harness.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kInstalls = 20;
constexpr SessionId kLoad = 1000, kShared = 0, kMembers = 3;

// Its weights come through the stage of a rollout worker.
struct StagedEngine {
  StagedEngine(const ModelConfig& config, Dtype dtype, WeightStage::Options options)
      : model(config),
        stage(config, dtype, Stream{}, std::move(options)),
        engine(model, nullptr, engine_options({.max_batch_tokens = 40, .max_sequences = 16}),
               Stream{.device = {}, .pool = &pool, .native = nullptr}, clock) {}

  // One step between any two looks at the stage, as the worker does it. The answers are kept.
  void step() {
    for (Generation& answer : engine.step()) answers[answer.session] = std::move(answer);
  }

  ThreadPool pool{1};
  SteadyClock clock;
  Model model;
  WeightStage stage;
  Engine engine;
  std::map<SessionId, Generation> answers;
};

class InstallsUnderLoadTest : public testing::TestWithParam<Dtype> {
 protected:
  InstallsUnderLoadTest() : layout_(config_), parameters_(layout_) {
    init_parameters(config_, /*seed=*/1, parameters_);
  }

  // As a step of the trainer changes them: few elements, by little.
  WeightVersion publish(int64_t version) {
    for (const ParameterInfo& info : layout_.entries())
      for (float& value : parameters_.vector(info.name))
        if (rng_.chance(0.2)) value *= 1.0f + 0.05f * static_cast<float>(rng_.uniform() - 0.5);
    const WeightManifest manifest =
        make_manifest(parameters_, 0, version, numerics_class(GetParam()), {}, GetParam());
    const auto name = publish_weights(folder_.path(), manifest, parameters_);
    EXPECT_TRUE(name) << name.failure().message;
    return {version, manifest.root};
  }
  static std::string manifest_of(const WeightVersion& version) {
    return manifest_name(0, version.version);
  }
  std::unique_ptr<StagedEngine> engine(std::function<void(const PackedWeights&)> on_packed = {}) {
    return std::make_unique<StagedEngine>(config_, GetParam(),
                                          WeightStage::Options{.fetch = weights_in(folder_.path()),
                                                               .on_packed = std::move(on_packed)});
  }

  // `between`: called while the version is on its way.
  static WeightStage::Staged stage(
      StagedEngine& engine, const WeightVersion& version,
      const std::function<void()>& between = [] {}) {
    engine.stage.ask(version, manifest_of(version));
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (auto staged = engine.stage.poll(/*samples=*/true)) return std::move(*staged);
      between();
    }
    return {.version = version, .failure = Failure{"it takes too long"}};
  }
  static void install(
      StagedEngine& engine, const WeightVersion& version,
      const std::function<void()>& between = [] {}) {
    const auto staged = stage(engine, version, between);
    ASSERT_FALSE(staged.failure) << staged.failure->message;
    between();
    engine.stage.order_switch(version);
    const auto switched = engine.stage.poll_switch(/*may_change=*/true);
    ASSERT_TRUE(switched && switched->weights);
    engine.engine.install(switched->weights, version.version);
  }
  // The members of a group share their prompt.
  std::vector<Generation> answers_to(
      StagedEngine& engine, const std::vector<TokenId>& prompt,
      const std::function<void()>& between = [] {}) {
    for (SessionId member = kShared; member < kShared + kMembers; ++member)
      engine.engine.submit(request_of(member, prompt, 24));
    std::vector<Generation> answers;
    for (SessionId member = kShared; member < kShared + kMembers; ++member) {
      for (int step = 0; !engine.answers.contains(member); ++step) {
        EXPECT_LT(step, 10000) << "the engine stands still";
        if (step == 10000) return answers;
        engine.step();
        between();
      }
      answers.push_back(std::move(engine.answers.extract(member).mapped()));
      engine.engine.release(member);
    }
    return answers;
  }
  static void expect_same(const std::vector<Generation>& a, const std::vector<Generation>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t member = 0; member < a.size(); ++member) {
      ASSERT_EQ(a[member].tokens.size(), b[member].tokens.size());
      for (size_t i = 0; i < a[member].tokens.size(); ++i) {
        ASSERT_EQ(a[member].tokens[i].id, b[member].tokens[i].id)
            << "member " << member << " " << i;
        ASSERT_EQ(a[member].tokens[i].logprob, b[member].tokens[i].logprob);
      }
    }
  }

  const ModelConfig config_ = tiny_config();
  const ParameterLayout layout_;
  Parameters parameters_;
  Rng rng_{7};
  TemporaryDirectory folder_;
};

INSTANTIATE_TEST_SUITE_P(Dtypes, InstallsUnderLoadTest, testing::Values(Dtype::kF32, Dtype::kBF16),
                         [](const auto& param) {
                           return std::string(param.param == Dtype::kF32 ? "f32" : "bf16");
                         });

TEST_P(InstallsUnderLoadTest, ASharedPromptHasTheBitsOfAColdEngine) {
  const std::vector<TokenId> shared = random_tokens(40, config_.vocab_size, 1);
  const auto warm = engine();
  install(*warm, publish(0));
  const std::vector<Generation> first = answers_to(*warm, shared);
  // Some begin like the shared prompt, some are its whole group again.
  SessionId next = kLoad;
  int64_t running = 0, steps_while_staging = 0, running_at_switch = 0;
  const auto load = [&] {
    for (; running < 6; ++running) {
      std::vector<TokenId> prompt = shared;
      if (next % 2 == 0) {
        prompt.resize(17 + static_cast<size_t>(next % 16));
        for (const TokenId id : random_tokens(1 + next % 9, config_.vocab_size, next))
          prompt.push_back(id);
      }
      warm->engine.submit(request_of(next, prompt, 8 + next % 40));
      ++next;
    }
    warm->step();
    std::erase_if(warm->answers, [&](const auto& answer) {
      if (answer.first < kLoad) return false;
      warm->engine.release(answer.first);
      --running;
      return true;
    });
  };
  WeightVersion newest;
  for (int64_t version = 1; version <= kInstalls; ++version) {
    for (int64_t i = 0; i < 3 + version % 5; ++i) load();
    newest = publish(version);
    install(*warm, newest, [&] {
      load();
      ++steps_while_staging;
    });
    running_at_switch += running;
  }
  EXPECT_EQ(warm->engine.version(), kInstalls);
  EXPECT_GE(steps_while_staging, kInstalls) << "it sampled while versions were staged";
  EXPECT_GT(running_at_switch, 2 * kInstalls);
  EXPECT_GT(warm->engine.stats().planner.prefix_hit_tokens, 0);
  // Beside others that sample on, and out of the cache.
  for (int i = 0; i < 3; ++i) load();
  const std::vector<Generation> loaded = answers_to(*warm, shared, load);

  const auto cold = engine();
  install(*cold, newest);
  const std::vector<Generation> expected = answers_to(*cold, shared);
  expect_same(loaded, expected);
  for (const Generation& answer : loaded)
    for (const GeneratedToken& token : answer.tokens) EXPECT_EQ(token.version, kInstalls);
  // The weights have become others: a test of equal versions would prove nothing.
  EXPECT_NE(first[0].tokens[0].logprob, expected[0].tokens[0].logprob);
}

// The switch happens whole or not at all.
TEST_P(InstallsUnderLoadTest, AnInstallThatFailsChangesNoBit) {
  const WeightVersion old = publish(0);
  const std::vector<TokenId> prompt = random_tokens(30, config_.vocab_size, 2);
  const auto undisturbed = engine();
  install(*undisturbed, old);
  const std::vector<Generation> expected = answers_to(*undisturbed, prompt);

  const WeightVersion damaged = publish(1), unpacked = publish(2), never_staged = publish(3);
  const std::filesystem::path payload = folder_ / payload_name(manifest_of(damaged));
  std::string bytes = read_file(payload).value();
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(payload, std::ios::binary) << bytes;
  bool flips = false;
  const auto disturbed = engine([&](const PackedWeights& packed) {
    if (flips) const_cast<std::byte&>(packed.layers()[0].down.data[5]) ^= std::byte{4};
  });
  install(*disturbed, old);
  int failures = 0;
  const auto expect_failure = [&](const WeightVersion& version) {
    bool has_stepped = false;
    const auto staged = stage(*disturbed, version, [&] {
      if (!std::exchange(has_stepped, true)) disturbed->step();
    });
    EXPECT_TRUE(disturbed->answers.empty()) << "it came too late";
    ASSERT_TRUE(staged.failure);
    EXPECT_EQ(staged.cause, InstallCause::kDigest);
    EXPECT_NE(staged.failure->message.find("tensor model."), std::string::npos)
        << staged.failure->message;
    ++failures;
  };
  const auto expect_no_switch = [&](const WeightVersion& version) {
    disturbed->stage.order_switch(version);
    const auto switched = disturbed->stage.poll_switch(/*may_change=*/true);
    ASSERT_TRUE(switched);
    EXPECT_TRUE(switched->failure);
    EXPECT_FALSE(switched->weights) << "the engine would sample by them";
    ++failures;
  };
  int step = 0;
  const std::vector<Generation> answers = answers_to(*disturbed, prompt, [&] {
    switch (++step) {
      case 3:
        return expect_no_switch(never_staged);
      case 5:
        return expect_failure(damaged);
      case 6:
        return expect_no_switch(damaged);
      case 8:
        flips = true;
        expect_failure(unpacked);
        flips = false;
        return expect_no_switch(unpacked);
    }
  });
  EXPECT_EQ(failures, 5);
  expect_same(answers, expected);
  EXPECT_EQ(disturbed->engine.version(), 0);
  // And the next one comes as if nothing had been.
  install(*disturbed, unpacked);
  EXPECT_EQ(disturbed->engine.version(), 2);
}

}  // namespace
}  // namespace tailrace
