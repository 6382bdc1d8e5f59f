#include "rollout/worker/weight_stage.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/weights/frozen_base.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "kernels/base/memory.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 70;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  return config;
}

class WeightStageTest : public ::testing::Test {
 protected:
  // Versions of different seeds have different roots.
  WeightVersion publish(int64_t version, uint64_t seed) {
    ParameterLayout layout(config_);
    Parameters parameters(layout);
    init_parameters(config_, seed, parameters);
    const WeightManifest manifest = make_manifest(parameters, 0, version, numerics_class());
    const auto name = publish_weights(folder_.path(), manifest, parameters);
    EXPECT_TRUE(name) << name.failure().message;
    return {version, manifest.root};
  }
  static std::string manifest_of(const WeightVersion& version) {
    return "p0-v" + std::to_string(version.version) + ".json";
  }

  // Counts what is read.
  WeightStage::Options options() {
    return {.fetch = [this, local = weights_in(folder_.path())](const WeightFetch& fetch) {
      ++num_fetches_;
      return local(fetch);
    }};
  }
  WeightStage stage(Dtype dtype = Dtype::kF32) { return {config_, dtype, Stream{}, options()}; }

  static void ask(WeightStage& stage, const WeightVersion& version) {
    stage.ask(version, manifest_of(version));
  }
  // Far more than it takes: only a test that fails waits for it.
  template <class Done>
  static void wait_until(const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
  static std::optional<WeightStage::Staged> await(WeightStage& stage) {
    std::optional<WeightStage::Staged> staged;
    wait_until([&] { return (staged = stage.poll(/*samples=*/true)).has_value(); });
    return staged;
  }
  // Asks, stages and switches; null: it failed.
  static std::shared_ptr<const PackedWeights> install(WeightStage& stage,
                                                      const WeightVersion& version) {
    ask(stage, version);
    const auto staged = stage.poll(/*samples=*/false);
    if (!staged || staged->failure) return nullptr;
    stage.order_switch(version);
    const auto switched = stage.poll_switch(/*may_change=*/true);
    return switched ? switched->weights : nullptr;
  }
  static float first_norm(const PackedWeights& weights) {
    return weights.layers()[0].input_norm[0];
  }

  const ModelConfig config_ = small_config();
  TemporaryDirectory folder_;
  std::atomic<int> num_fetches_ = 0;
};

TEST_F(WeightStageTest, StagesWhatIsAskedForAndSwitchesWhenItIsTold) {
  WeightStage stage = this->stage();
  EXPECT_FALSE(stage.poll(false)) << "nobody has asked";
  const WeightVersion version = publish(0, 1);
  ask(stage, version);
  const auto staged = stage.poll(/*samples=*/false);
  ASSERT_TRUE(staged);
  EXPECT_FALSE(staged->failure) << staged->failure->message;
  EXPECT_EQ(staged->version.root, version.root);
  EXPECT_FALSE(stage.poll(false)) << "answered once";
  EXPECT_FALSE(stage.poll_switch(true)) << "nobody has ordered it";
  stage.order_switch(version);
  EXPECT_FALSE(stage.poll_switch(/*may_change=*/false)) << "an evaluation goes on";
  const auto switched = stage.poll_switch(/*may_change=*/true);
  ASSERT_TRUE(switched && switched->weights && !switched->failure);
  EXPECT_EQ(switched->version.version, 0);
  EXPECT_FALSE(stage.poll_switch(true));
}

// An adapter is staged beside a base that never changes, and beside no other.
TEST_F(WeightStageTest, AnAdapterGoesBesideItsOwnBase) {
  ModelConfig config = config_;
  config.lora = {.rank = 2, .alpha = 4, .targets = {LoraTarget::kQ}, .base = ""};
  const ParameterLayout base_layout(config), layout = ParameterLayout::of_adapter(config);
  Parameters base(base_layout), adapter(layout);
  init_parameters(config, /*seed=*/1, base);
  init_parameters(config, /*seed=*/2, adapter);
  save_model(folder_ / "base", config_, base);
  const int64_t before = Buffer::total_bytes();
  WeightStage::Options with_base = options();
  with_base.base = load_frozen_base(Stream{}, folder_ / "base", config, Dtype::kF32);
  const Digest root = with_base.base.root;
  WeightStage stage(config, Dtype::kF32, Stream{}, std::move(with_base));
  EXPECT_EQ(Buffer::total_bytes() - before, WeightStage::bytes(config, Dtype::kF32));
  const auto publish = [&](int64_t version, const Digest& beside) {
    adapter.vector(layout.entries()[0].name)[0] = static_cast<float>(version);
    const WeightManifest manifest = make_manifest(adapter, 0, version, numerics_class(), beside);
    const auto name = publish_weights(folder_.path(), manifest, adapter);
    EXPECT_TRUE(name);
    return WeightVersion{version, manifest.root};
  };
  const auto first = install(stage, publish(0, root));
  ASSERT_TRUE(first);
  const auto second = install(stage, publish(1, root));
  ASSERT_TRUE(second);
  EXPECT_NE(first->layers()[0].adapter.qkv_a.data, second->layers()[0].adapter.qkv_a.data);
  EXPECT_EQ(first->layers()[0].qkv.data, second->layers()[0].qkv.data) << "the base is one";
  ask(stage, publish(2, Digest("0123456789abcdef0123456789abcdef")));
  const auto refused = stage.poll(/*samples=*/false);
  ASSERT_TRUE(refused && refused->failure);
  EXPECT_NE(refused->failure->message.find(root), std::string::npos) << refused->failure->message;
}

TEST_F(WeightStageTest, TheSameRootIsReadOnce) {
  WeightStage stage = this->stage();
  const WeightVersion first = publish(0, 1), second = publish(1, 2);
  ASSERT_TRUE(install(stage, first));
  ask(stage, first);
  EXPECT_FALSE(stage.poll(false)->failure);
  stage.order_switch(first);
  const auto again = stage.poll_switch(/*may_change=*/false);
  ASSERT_TRUE(again && !again->failure);
  EXPECT_FALSE(again->weights) << "they sample already";
  EXPECT_EQ(num_fetches_, 1);
  // Also behind something newer that was staged, and under another number.
  ask(stage, second);
  EXPECT_FALSE(stage.poll(false)->failure);
  EXPECT_EQ(num_fetches_, 2);
  stage.ask({2, first.root}, "none");
  EXPECT_FALSE(stage.poll(false)->failure);
  EXPECT_EQ(num_fetches_, 2);
  stage.order_switch({2, first.root});
  EXPECT_FALSE(stage.poll_switch(/*may_change=*/false));
  EXPECT_TRUE(stage.poll_switch(/*may_change=*/true)->weights);
}

TEST_F(WeightStageTest, AFailedProofLeavesWhatSamples) {
  WeightStage stage = this->stage();
  const WeightVersion first = publish(0, 1), second = publish(1, 2);
  const auto sampling = install(stage, first);
  ASSERT_TRUE(sampling);
  const auto norm = first_norm(*sampling);
  WeightVersion forged = second;
  forged.root[0] = forged.root[0] == '0' ? '1' : '0';
  ask(stage, forged);
  const auto staged = stage.poll(false);
  ASSERT_TRUE(staged && staged->failure);
  EXPECT_NE(staged->failure->message.find("is wanted"), std::string::npos)
      << staged->failure->message;
  stage.order_switch(forged);
  const auto switched = stage.poll_switch(true);
  ASSERT_TRUE(switched && switched->failure);
  EXPECT_EQ(switched->failure->message, "other weights are staged");
  EXPECT_EQ(first_norm(*sampling), norm);
  // It is still there, and the next one can be staged.
  ask(stage, first);
  EXPECT_FALSE(stage.poll(false)->failure);
  EXPECT_TRUE(install(stage, second));
}

// A bit of the memory that products read, behind the proof of the file.
TEST_F(WeightStageTest, RefusesWhatIsNotPackedAsItWasProved) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    bool flips = true;
    WeightStage::Options options = this->options();
    options.on_packed = [&](const PackedWeights& packed) {
      if (!flips) return;
      const Weight& down = packed.layers()[1].down;
      const_cast<std::byte&>(down.data[0]) ^= std::byte{1};
    };
    WeightStage stage(config_, dtype, Stream{}, options);
    const WeightVersion version = publish(0, 1);
    ask(stage, version);
    const auto staged = stage.poll(false);
    ASSERT_TRUE(staged && staged->failure);
    EXPECT_NE(staged->failure->message.find("tensor model.layers.1.mlp.down_proj.weight block 0"),
              std::string::npos)
        << staged->failure->message;
    stage.order_switch(version);
    EXPECT_TRUE(stage.poll_switch(true)->failure) << "it never samples by them";
    flips = false;
    EXPECT_TRUE(install(stage, version));
  }
}

// All of it when it is made.
TEST_F(WeightStageTest, TakesTheMemoryOfTwoVersionsAndNoMore) {
  const int64_t before = Buffer::total_bytes();
  WeightStage stage = this->stage(Dtype::kBF16);
  EXPECT_EQ(Buffer::total_bytes() - before, WeightStage::bytes(config_, Dtype::kBF16));
  std::shared_ptr<const PackedWeights> sampling;
  for (int64_t version = 0; version < 4; ++version) {
    const auto next = install(stage, publish(version, 1 + static_cast<uint64_t>(version)));
    ASSERT_TRUE(next);
    EXPECT_NE(next, sampling);
    sampling = next;
  }
  EXPECT_EQ(Buffer::total_bytes() - before, WeightStage::bytes(config_, Dtype::kBF16));
}

// A fetch that takes as long as the test wants, and sees whether it is stopped.
struct SlowFetch {
  explicit SlowFetch(std::filesystem::path folder) : local(weights_in(std::move(folder))) {}

  FetchWeights function() {
    return [this](const WeightFetch& fetch) {
      ++begun;
      while (!go && !fetch.stop.stop_requested()) std::this_thread::yield();
      if (fetch.stop.stop_requested()) ++stopped;
      return local(fetch);
    };
  }

  FetchWeights local;
  std::atomic<bool> go = false;
  std::atomic<int> begun = 0, stopped = 0;
};

// Also when nothing samples: the worker hears and says other things meanwhile.
TEST_F(WeightStageTest, NeverWaitsForAFetchThatTakesLong) {
  SlowFetch slow(folder_.path());
  WeightStage stage(config_, Dtype::kF32, Stream{},
                    {.fetch = slow.function(), .fetch_takes_long = true});
  const WeightVersion version = publish(0, 1);
  ask(stage, version);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(stage.poll(/*samples=*/false));
  stage.order_switch(version);
  EXPECT_FALSE(stage.poll_switch(true)) << "it is not there yet";
  slow.go = true;
  EXPECT_FALSE(await(stage)->failure);
  EXPECT_TRUE(stage.poll_switch(true)->weights);
}

TEST_F(WeightStageTest, ANewerWishStopsTheOneThatIsFetched) {
  SlowFetch slow(folder_.path());
  WeightStage stage(config_, Dtype::kF32, Stream{},
                    {.fetch = slow.function(), .fetch_takes_long = true});
  const WeightVersion first = publish(0, 1), second = publish(1, 2);
  ask(stage, first);
  EXPECT_FALSE(stage.poll(true));
  ask(stage, first);  // once more: it goes on
  EXPECT_FALSE(stage.poll(true));
  EXPECT_EQ(slow.stopped, 0);
  ask(stage, second);
  wait_until([&] {
    EXPECT_FALSE(stage.poll(true)) << "only the newest is answered";
    return slow.begun == 2;
  });
  EXPECT_EQ(slow.stopped, 1);
  slow.go = true;
  EXPECT_EQ(await(stage)->version.root, second.root);
}

// A session that begins asks for everything anew; what is on its way is not fetched twice.
TEST_F(WeightStageTest, ForgetsWishesAndOrdersOfASessionThatEnded) {
  SlowFetch slow(folder_.path());
  WeightStage stage(config_, Dtype::kF32, Stream{},
                    {.fetch = slow.function(), .fetch_takes_long = true});
  const WeightVersion first = publish(0, 1), second = publish(1, 2);
  ask(stage, first);
  EXPECT_FALSE(stage.poll(true));
  stage.order_switch(first);
  stage.forget();
  ask(stage, first);
  slow.go = true;
  EXPECT_EQ(await(stage)->version.root, first.root);
  EXPECT_EQ(slow.begun, 1);
  EXPECT_FALSE(stage.poll_switch(true)) << "the order was of the session before";
  ask(stage, second);
  stage.forget();
  EXPECT_FALSE(stage.poll(true));
  EXPECT_EQ(slow.begun, 1);
}

// Its end is no fault of the worker's that the next session should hear of.
TEST_F(WeightStageTest, AVersionThatWasStoppedIsNotAnswered) {
  SlowFetch slow(folder_.path());
  WeightStage stage(config_, Dtype::kF32, Stream{},
                    {.fetch = slow.function(), .fetch_takes_long = true});
  const WeightVersion first = publish(0, 1), second = publish(1, 2);
  ask(stage, first);
  EXPECT_FALSE(stage.poll(true));
  ask(stage, second);
  stage.forget();
  wait_until([&] { return slow.stopped == 1; });
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(stage.poll(true));
    std::this_thread::sleep_for(1ms);  // so that its thread has ended in most of them
  }
  slow.go = true;
  ask(stage, first);
  const auto staged = await(stage);
  ASSERT_TRUE(staged);
  EXPECT_FALSE(staged->failure);
}

TEST_F(WeightStageTest, StopsAFetchWhenItDies) {
  SlowFetch slow(folder_.path());
  {
    WeightStage stage(config_, Dtype::kF32, Stream{},
                      {.fetch = slow.function(), .fetch_takes_long = true});
    ask(stage, publish(0, 1));
    EXPECT_FALSE(stage.poll(false));
    wait_until([&] { return slow.begun == 1; });
  }
  EXPECT_EQ(slow.stopped, 1);
}

TEST_F(WeightStageTest, SaysWhyAFetchFailed) {
  WeightStage stage(config_, Dtype::kF32, Stream{},
                    {.fetch = [](const WeightFetch& fetch) -> Result<FetchedWeights> {
                      return Failure{"nobody has " + fetch.manifest};
                    }});
  ask(stage, {3, "x"});
  const auto staged = stage.poll(false);
  EXPECT_EQ(staged->failure->message, "nobody has p0-v3.json");
  EXPECT_EQ(staged->cause, InstallCause::kSource) << "the worker is at no fault";
}

}  // namespace
}  // namespace tailrace
