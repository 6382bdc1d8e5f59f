// The trainer of an adapter (LoRA) as a worker process.

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/weights/proved_weights.h"
#include "tests/trainer/worker/fake_scheduler.h"
#include "tests/trainer/worker/stages.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Of an adapter: only what is trained has gradients and moments, and its base is packed once.
class TrainerOfAnAdapter : public TrainerWorkerTest {
 protected:
  TrainerOfAnAdapter() {
    ModelConfig base = testing::tiny_model();
    const ParameterLayout layout(base);
    Parameters weights(layout);
    init_parameters(base, /*seed=*/7, weights);
    save_model(base_, base, weights);
  }

  TrainerWorkerConfig adapter_config(const char* run) {
    TrainerWorkerConfig config = this->config(run);
    config.model.lora = {.rank = 2,
                         .alpha = 4,
                         .targets = {LoraTarget::kQ, LoraTarget::kGate, LoraTarget::kDown},
                         .base = base_};
    config.model_dir = base_;
    config.algo.kl.coef = 0.1;
    return config;
  }
  // The digests of the versions up to `until`, from the newest checkpoint on.
  std::map<int64_t, Digest> train(TrainerWorkerConfig config, const char* socket, int64_t until) {
    config.endpoint = "ipc://" + (dir_.path() / socket).string();
    FakeScheduler scheduler(config.endpoint);
    scheduler.on_message = [&](auto&, const wire::Message& m) { return is_durable(m, until); };
    EXPECT_EQ(serve(config, scheduler), 0);
    published_ = scheduler.all<wire::Published>();
    return scheduler.digests;
  }

  const fs::path base_ = dir_.path() / "base";
  std::vector<wire::Published> published_;
};

TEST_F(TrainerOfAnAdapter, TakesTheMemoryThatItSays) {
  for (const bool streams : {false, true}) {
    TrainerWorkerConfig config = adapter_config(streams ? "streams" : "whole");
    config.stages = {testing::sft_stage(write_rows())};
    config.streams = streams;
    config.train.gradient_slots = 3;
    for (const int64_t until : {2, 4}) {
      config.endpoint = fmt::format("{}{}{}", endpoint_, streams, until);
      FakeScheduler scheduler(config.endpoint);
      if (streams) scheduler.parts = {1};
      scheduler.on_message = [&](auto&, const wire::Message& m) { return is_durable(m, until); };
      const int64_t before = Buffer::total_bytes();
      Buffer::begin_peak();
      ASSERT_EQ(serve(config, scheduler), 0);
      EXPECT_EQ(Buffer::peak_bytes() - before, total_bytes(trainer_memory(config).host))
          << "streams " << streams << " until " << until;
    }
  }
}

TEST_F(TrainerOfAnAdapter, PublishesAndKeepsTheAdapterAlone) {
  const TrainerWorkerConfig config = adapter_config("run");
  const auto digests = train(config, "a", 4);
  EXPECT_EQ(testing::metric(published_.at(1).metrics, "policy/kl_ref"), 0);
  EXPECT_GT(testing::metric(published_.back().metrics, "policy/kl_ref"), 0)
      << "a fresh adapter adds nothing: the reference is the base";
  EXPECT_FALSE(fs::exists(config.run.reference()));
  const auto proved = prove_weights(config.run.weights() / published_.back().manifest,
                                    digests.at(4), ParameterLayout::of_adapter(config.model));
  ASSERT_TRUE(proved) << proved.failure().message;
  EXPECT_FALSE(proved.value().base().empty());
  const fs::path saved = config.run.checkpoints() / "step_000004";
  EXPECT_EQ(read_adapter_config(saved), config.model.lora);
  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  const ParameterLayout layout = ParameterLayout::of_adapter(config.model);
  Parameters adapter(layout);
  load_parameters(saved, config.model, adapter, kAdapterFile);
  for (const ParameterInfo& info : adapter.layout().entries())
    EXPECT_TRUE(std::ranges::equal(std::as_const(adapter).vector(info.name),
                                   proved.value().values(info.name).floats()))
        << info.name;
}

TEST_F(TrainerOfAnAdapter, ComesBackWithItsCheckpointAndGivesTheSameWeights) {
  const auto straight = train(adapter_config("straight"), "a", 4);
  train(adapter_config("broken"), "b", 2);
  const auto again = train(adapter_config("broken"), "c", 4);
  EXPECT_EQ(again.at(3), straight.at(3));
  EXPECT_EQ(again.at(4), straight.at(4));
}

// As with all weights: the reference is the policy as RL begins, whatever taught the adapter
// before, unless the config asks for the base.
TEST_F(TrainerOfAnAdapter, TheReferenceIsThePolicyAtTheStart) {
  train(adapter_config("first"), "a", 2);
  const auto continued = [&](const char* run) {
    TrainerWorkerConfig config = adapter_config(run);
    config.adapter_dir = this->config("first").run.checkpoints() / "step_000002";
    config.optim.lr = 0;
    return config;
  };
  const auto kl = [&] { return testing::metric(published_.at(1).metrics, "policy/kl_ref"); };
  train(continued("adapter"), "b", 2);
  EXPECT_EQ(kl(), 0);
  TrainerWorkerConfig base = continued("base");
  base.algo.kl.reference = KlReference::kBase;
  train(base, "c", 2);
  EXPECT_GT(kl(), 1e-6);
  EXPECT_FALSE(fs::exists(base.run.reference()));
  // Behind a warm-up.
  TrainerWorkerConfig warm = adapter_config("warm");
  warm.stages = {testing::sft_stage(write_rows())};
  warm.optim.lr = 0;
  train(warm, "d", 2);
  EXPECT_EQ(kl(), 0);
  // A run that goes on has the same reference, from its files.
  TrainerWorkerConfig straight = continued("straight"), broken = continued("broken");
  straight.optim.lr = broken.optim.lr = 1e-2;
  const auto digests = train(straight, "e", 4);
  train(broken, "f", 2);
  EXPECT_EQ(train(broken, "g", 4).at(4), digests.at(4));
  EXPECT_GT(testing::metric(published_.back().metrics, "policy/kl_ref"), 0);
}

// Its files are proved, as those of a checkpoint are.
TEST_F(TrainerOfAnAdapter, AChangedReferenceIsRefused) {
  TrainerWorkerConfig config = adapter_config("run");
  config.stages = {testing::sft_stage(write_rows())};
  train(config, "a", 2);
  const ParameterLayout layout = ParameterLayout::of_adapter(config.model);
  Parameters other(layout);
  init_parameters(config.model, /*seed=*/9, other);
  save_adapter(config.run.reference(), config.model.lora, other, "");
  config.endpoint = "ipc://" + (dir_.path() / "b").string();
  FakeScheduler scheduler(config.endpoint);
  scheduler.on_message = [](auto&, const wire::Message& m) {
    return std::holds_alternative<wire::WorkerFailed>(m);
  };
  EXPECT_EQ(serve(config, scheduler), 2);
  const auto failed = scheduler.all<wire::WorkerFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_NE(failed[0].reason.find(config.run.reference().string()), std::string::npos)
      << failed[0].reason;
}

TEST_F(TrainerOfAnAdapter, RanksHaveTheReferenceOfOne) {
  train(adapter_config("first"), "a", 2);
  std::map<int64_t, Digest> alone;
  for (const size_t ranks : {1, 2}) {
    TrainerWorkerConfig config = adapter_config(ranks == 1 ? "one" : "two");
    config.adapter_dir = this->config("first").run.checkpoints() / "step_000002";
    config.train.gradient_slots = 2;
    config.train.ranks = static_cast<int64_t>(ranks);
    config.endpoint = endpoint_ + std::to_string(ranks);
    FakeScheduler scheduler(config.endpoint);
    scheduler.ranks = ranks;
    scheduler.on_message = [](auto&, const wire::Message& m) { return is_durable(m, 4); };
    std::future<ExitCode> other;
    if (ranks == 2)
      other = std::async(std::launch::async, [this, config]() mutable {
        config.worker = "trainer-1";
        config.rank = 1;
        Log log(config.worker, dir_.path() / "log-1");
        const SteadyClock clock;
        return run_trainer_worker(config, log, clock);
      });
    EXPECT_EQ(serve(config, scheduler), 0);
    if (other.valid()) {
      EXPECT_EQ(other.get(), kExitDone);
    }
    if (ranks == 1) alone = scheduler.digests;
    EXPECT_EQ(scheduler.digests, alone);
  }
}

TEST_F(TrainerOfAnAdapter, BesideAnotherBaseIsRefused) {
  train(adapter_config("run"), "a", 2);
  ModelConfig base = testing::tiny_model();
  const ParameterLayout layout(base);
  Parameters weights(layout);
  init_parameters(base, /*seed=*/8, weights);
  save_model(base_, base, weights);
  TrainerWorkerConfig config = adapter_config("run");
  config.endpoint = "ipc://" + (dir_.path() / "b").string();
  FakeScheduler scheduler(config.endpoint);
  scheduler.on_message = [](auto&, const wire::Message& m) {
    return std::holds_alternative<wire::WorkerFailed>(m);
  };
  EXPECT_EQ(serve(config, scheduler), 2);
  const auto failed = scheduler.all<wire::WorkerFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_NE(failed[0].reason.find(base_.string()), std::string::npos) << failed[0].reason;
}

}  // namespace
}  // namespace tailrace
