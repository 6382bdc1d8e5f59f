#include "cli/prepare/plan.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "cli/inputs/length.h"
#include "cli/inputs/planned_model.h"
#include "cli/prepare/rates.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/config/yaml_config.h"
#include "core/model/parameters.h"
#include "rollout/engine/engine.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

RunOptions example() {
  RunOptions options;
  bind_config(
      parse_config("run: {steps: 80}\n"
                   "model: {create: {hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, "
                   "kv_heads: 2}}\n"
                   "env: {name: frozen_grid}\n"
                   "rollout: {prompts_per_step: 16, group_size: 8, max_context_tokens: 128, "
                   "workers: 2, kv_cache_mb: 16}\n"
                   "train: {minibatches_per_step: 2, ppo_epochs: 3, microbatch_tokens: 1024}\n",
                   "a.yaml", {}),
      options);
  return options;
}

ModelConfig model_of(const RunOptions& options) {
  return planned_model(resolve(options), sandbox::built_in_environments());
}

Plan plan_of(const RunOptions& options, const ModelConfig& model, int64_t available_bytes = 0) {
  return make_plan(place(resolve(options), model), available_bytes);
}
Plan plan_of(const RunOptions& options) { return plan_of(options, model_of(options)); }

int64_t bytes_of(const std::vector<MemoryItem>& items, std::string_view name) {
  const auto found = std::ranges::find(items, name, &MemoryItem::name);
  return found == items.end() ? -1 : found->bytes;
}

TEST(MakePlan, DerivesBatchesAndUpdates) {
  RunOptions options = example();
  Plan plan = plan_of(options);
  EXPECT_EQ(plan.samples_per_step, 128);
  EXPECT_EQ(plan.samples_per_minibatch, 64);
  EXPECT_EQ(plan.updates_per_step, 6);
  EXPECT_EQ(plan.max_tokens_per_step, 128 * 128);
  EXPECT_EQ(plan.parameters, ParameterLayout(model_of(options)).num_parameters());
  EXPECT_NEAR(static_cast<double>(plan.parameters), 153e3, 5e3);  // the quickstart policy
  // Not quite: whole blocks of kv_cache_mb.
  EXPECT_NEAR(static_cast<double>(bytes_of(plan.rollout_worker, "KV cache")), 16 << 20, 1 << 15);
}

// What the processes allocate, as they say it (and their own tests prove it), for the pool with the
// most slots.
TEST(MakePlan, CountsWhatTheProcessesAllocate) {
  RunOptions options = example();
  options.rollout.engine.kv_cache_mb = 4096;  // far more than is of use
  options.rollout_processes.pools = {{.name = "small", .max_sequences = 3},
                                     {.name = "large", .workers = 2, .max_sequences = 7}};
  options.algo.kl.coef = 0.01;
  options.train.gradient_slots = 4;
  const ModelConfig config = model_of(options);
  const Plan plan = plan_of(options, config);
  SteadyClock clock;
  int64_t before = Buffer::total_bytes();
  {
    EngineOptions engine_options = options.rollout.engine;
    engine_options.max_sequences = 7;
    const Model model(config, engine_options.max_context_tokens);
    // Of two versions.
    const Buffer weights[] = {Buffer(static_cast<size_t>(PackedWeights::bytes(config))),
                              Buffer(static_cast<size_t>(PackedWeights::bytes(config)))};
    const Engine engine(model, nullptr, engine_options, Stream{}, clock);
    EXPECT_EQ(certain_bytes(plan.rollout_worker), Buffer::total_bytes() - before);
  }
  before = Buffer::total_bytes();
  options.train.threads = 1;
  PolicyTrainer trainer(Stream{}, config, options.train, options.rollout.engine.max_context_tokens);
  trainer.reset_optimizer({});
  trainer.set_reference(trainer.parameters());
  EXPECT_EQ(certain_bytes(plan_of(options, config).trainer), Buffer::total_bytes() - before);
  EXPECT_GT(plan.certain_bytes(),
            certain_bytes(plan.trainer) + 3 * certain_bytes(plan.rollout_worker) - 1);
  EXPECT_GT(plan.total_bytes(), plan.certain_bytes());
}

// The geometry of Qwen2.5-0.5B.
TEST(MakePlan, AnAdapterTakesLessThanHalfOfTheMemoryOfAllWeights) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "config.json") << R"({"architectures": ["Qwen2ForCausalLM"],
      "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
      "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
      "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "hidden_act": "silu", "use_sliding_window": false})";
  RunOptions options = example();
  options.model = {};
  options.model.path = folder.path();
  const auto plan_now = [&] { return plan_of(options); };
  const Plan full = plan_now();
  options.lora.rank = 16;
  const Plan adapter = plan_now();
  EXPECT_EQ(full.trained_parameters, full.parameters);
  EXPECT_EQ(full.parameters, 494032768);
  EXPECT_EQ(adapter.parameters, 494032768);
  // 16 x (in + out) of the seven matrices of a layer: the number that peft prints.
  EXPECT_EQ(adapter.trained_parameters, 8798208);
  EXPECT_LT(2 * total_bytes(adapter.trainer), total_bytes(full.trainer));
  EXPECT_LT(adapter.total_bytes(), full.total_bytes());
  // And none for a reference: it is the base.
  const int64_t without = adapter.total_bytes();
  options.algo.kl.coef = 0.01;
  EXPECT_EQ(plan_now().total_bytes(), without);
}

TEST(MakePlan, CountsTheReferenceOnlyWhenItIsKept) {
  RunOptions options = example();
  int64_t without = plan_of(options).total_bytes();
  options.algo.kl.coef = 0.01;
  EXPECT_GT(plan_of(options).total_bytes(), without);
  options.algo.kl.target = KlTarget::kBehaviour;
  EXPECT_EQ(plan_of(options).total_bytes(), without);
}

TEST(MakePlan, SaysWhatTruncatedSamplingCosts) {
  RunOptions options = example();
  const auto plan_now = [&] { return plan_of(options); };
  const Plan plain = plan_now();
  const auto warned = [](const Plan& plan) {
    return std::ranges::any_of(plan.warnings, [](const std::string& warning) {
      return warning.find("algo.sampling_mask=keep removes it") != std::string::npos;
    });
  };
  EXPECT_FALSE(warned(plain));
  options.rollout.sampling.top_k = 8;
  EXPECT_TRUE(warned(plan_now()));
  EXPECT_EQ(plan_now().total_bytes(), plain.total_bytes());
  options.algo.sampling_mask = SamplingMask::kKeep;
  EXPECT_FALSE(warned(plan_now()));
  // 128 samples of 128 tokens, 8 ids of 4 bytes: three times in the trainer, twice in each worker.
  EXPECT_EQ(plan_now().total_bytes() - plain.total_bytes(), 128 * 128 * 8 * 4 * (4 + 2 * 2));
  // All of the vocabulary: nothing is cut, and nothing is sent.
  options.rollout.sampling.top_k = 4096;
  EXPECT_EQ(plan_now().total_bytes(), plain.total_bytes());
  // More than 64 bits count is an answer as well.
  options.rollout.sampling.top_p = 0.9;
  options.step.group_size = 65536;
  options.step.prompts_per_step = 1'000'000'000;
  EXPECT_GT(plan_now().total_bytes(), int64_t{1} << 40);
}

TEST(MakePlan, SaysWhatRecordedExpertsCost) {
  RunOptions options = example();
  options.algo.router_replay = RouterReplay::kReplay;
  const auto environments = sandbox::built_in_environments();
  try {
    model_of(options);
    ADD_FAILURE() << "it has no experts";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "algo.router_replay is replay, but the policy has no experts to choose from. Try "
                 "off.");
  }
  options.model.create.experts = 4;
  options.rollout.engine.kv_cache_blocks = 64;
  const ModelConfig model = model_of(options);
  const int64_t choices = 2 * model.num_layers;
  EXPECT_EQ(model.expert_shape().per_token(), choices);
  const auto bytes = [&](RouterReplay replay) {
    options.algo.router_replay = replay;
    return plan_of(options, model).total_bytes();
  };
  // 128 samples of 128 tokens: twelve bytes a choice in the trainer, six in each of two workers,
  // two in their caches, and four for the rows of their passes.
  const int64_t passes = 2 * 4 * choices * options.rollout.engine.max_batch_tokens;
  const int64_t cached = 2 * 2 * choices * options.rollout.engine.block_tokens * 64;
  EXPECT_EQ(bytes(RouterReplay::kReplay) - bytes(RouterReplay::kOff),
            128 * 128 * choices * (12 + 2 * 6) + cached + passes);
  // Two bytes a choice, in half of a message.
  options.rollout.engine.max_context_tokens = (int64_t{64} << 20) / choices + 1;
  options.algo.router_replay = RouterReplay::kReplay;
  EXPECT_THROW(model_of(options), UserError);
}

TEST(MakePlan, WarnsWhenTheMemoryIsShort) {
  RunOptions options = example();
  Plan plan = plan_of(options, model_of(options), int64_t{1} << 20);
  ASSERT_FALSE(plan.warnings.empty());
  EXPECT_NE(plan.warnings[0].find("but 1.0 MiB are free"), std::string::npos);
}

TEST(CheckSize, RefusesWhatTheMachineCannotHold) {
  RunOptions options = example();
  const auto error_of = [&](const MemoryFacts& machine,
                            MemoryBound bound = MemoryBound::kCertain) -> std::string {
    try {
      check_size(plan_of(options), machine, bound);
    } catch (const UserError& error) {
      return error.key() + ": " + error.what();
    }
    return "";
  };
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_EQ(error_of({.total_bytes = kGib}), "");
  EXPECT_EQ(error_of({}), "") << "the system does not say";
  EXPECT_NE(error_of({.total_bytes = kGib, .cgroup_limit_bytes = 1 << 20})
                .find("this machine has 1.0 MiB"),
            std::string::npos);
  EXPECT_NE(
      error_of({.total_bytes = kGib, .available_bytes = 2 << 20}).find("2.0 MiB are free now"),
      std::string::npos);
  // What may not come about at all is no reason to refuse: sampled tokens at their longest.
  options.step.prompts_per_step = 100'000;
  EXPECT_EQ(error_of({.total_bytes = kGib, .available_bytes = kGib}), "");
  // But a launch wants to be forced, and then asks no more.
  EXPECT_EQ(error_of({.total_bytes = kGib, .available_bytes = kGib}, MemoryBound::kNone), "");
  const std::string most =
      error_of({.total_bytes = kGib, .available_bytes = kGib}, MemoryBound::kMost);
  for (const char* part : {"the run may need ",
                           " of memory and 1.0 GiB are free now. The largest "
                           "parts: ",
                           " (others)", "or begin all the same with --force."})
    EXPECT_NE(most.find(part), std::string::npos) << part << "\n" << most;
  EXPECT_EQ(error_of({.total_bytes = 1, .available_bytes = 1}, MemoryBound::kNone), "");
  const std::string certain = error_of({.total_bytes = 1});
  EXPECT_NE(certain.find("the run needs "), std::string::npos) << certain;
  EXPECT_NE(certain.find(" and this machine has 1 B. The largest parts: "), std::string::npos)
      << certain;
  EXPECT_EQ(certain.find("--force"), std::string::npos) << certain;
  options = example();
  options.rollout_processes.workers = 1024;
  EXPECT_NE(error_of({.total_bytes = kGib}).find("Make rollout.workers"), std::string::npos);
  // Larger than any number: still an answer.
  options.rollout.engine.kv_cache_blocks = kMaxKvBlocks;
  options.model.create.layers = 1024;
  EXPECT_NE(error_of({.total_bytes = kGib}), "");
  options = example();
  options.step.prompts_per_step = 1'000'000;
  EXPECT_TRUE(error_of({}).empty());
  options.step.group_size = 65536;
  EXPECT_NE(error_of({}).find("65536000000 samples a step"), std::string::npos) << error_of({});
}

TEST(MakePlan, SaysWhichPoolSamplesWhat) {
  RunOptions options = example();
  options.datasets = {{.name = "grid", .env = "frozen_grid", .pool = "large"},
                      {.name = "sums", .env = "calculator", .pool = "small"}};
  options.rollout_processes.pools = {{.name = "small", .workers = 1, .max_sequences = 3},
                                     {.name = "large", .workers = 2},
                                     {.name = "idle"}};
  const Plan plan = plan_of(options);
  EXPECT_EQ(plan.rollout_workers, 4);
  const std::string text = format_plan(plan, resolve(options));
  EXPECT_NE(text.find("pools      small: 1 worker x 3 slots, for sums\n"
                      "           large: 2 workers x 256 slots, for grid\n"
                      "           idle: 1 worker x 256 slots, for no dataset\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("pool idle has nothing to do"), std::string::npos) << text;
  options.datasets[1].pool.clear();
  EXPECT_EQ(plan_of(options).warnings.size(), plan.warnings.size() - 1);
}

TEST(FormatPlan, SaysWhatComesFromClusters) {
  RunOptions options = example();
  options.run.listen = "tcp://*:7117";
  options.clusters = {
      {.name = "west", .link_mbit = 1}, {.name = "east"}, {.name = "north", .link_mbit = 1000}};
  options.rollout_processes.pools = {
      {.name = "far", .workers = 2, .max_sequences = 7, .cluster = "west"},
      {.name = "near", .workers = 1, .max_sequences = 3},
      {.name = "farther", .workers = 1, .cluster = "west"},
      {.name = "eastern", .workers = 3, .cluster = "east"}};
  const ModelConfig config = model_of(options);
  const Plan plan = plan_of(options, config);
  EXPECT_EQ(plan.rollout_workers, 1);
  const std::string text = format_plan(plan, resolve(options));
  // 153,536 parameters, 4 bytes each.
  EXPECT_EQ(plan.parameters, 153'536);
  EXPECT_NE(
      text.find(
          "           near: 1 worker x 3 slots, for frozen_grid\n"
          "           farther: 1 worker x 256 slots, for frozen_grid, in cluster west\n"
          "           eastern: 3 workers x 256 slots, for frozen_grid, in cluster east\n"
          "listen     tcp://*:7117, where workers of other hosts join; HOST: this machine, as they "
          "reach it\n"
          "cluster    west: 3 rollout workers (pools far, farther), link 1 Mbit/s: the first "
          "version of 599.8 KiB takes 4.9 s at best, later ones come as deltas\n"
          "           join with tailrace worker --join tcp://HOST:7117 --pool far --cluster west "
          "...\n"
          "           join with tailrace worker --join tcp://HOST:7117 --pool farther --cluster "
          "west "
          "...\n"
          "cluster    east: 3 rollout workers (pool eastern)\n"
          "           join with tailrace worker --join tcp://HOST:7117 --pool eastern --cluster "
          "east ...\n"
          "cluster    north: no pool of rollout workers, link 1000 Mbit/s: the first version of "
          "599.8 KiB takes 5 ms at best, later ones come as deltas\n"
          "           join with tailrace worker --join tcp://HOST:7117 --cluster north ...\n"),
      std::string::npos)
      << text;
  // What is here is what counts.
  RunOptions here = options;
  std::erase_if(here.rollout_processes.pools,
                [](const PoolSection& pool) { return !pool.cluster.empty(); });
  EXPECT_EQ(plan_of(here, config).total_bytes(), plan.total_bytes());
  EXPECT_EQ(plan_of(here, config).certain_bytes(), plan.certain_bytes());
}

// Matrices in the dtype that computes, vectors in float32, and of an adapter the adapter.
TEST(MakePlan, AVersionOfTheWeightsHasTheSizeOfItsPayload) {
  RunOptions options = example();
  ModelConfig config = model_of(options);
  EXPECT_EQ(plan_of(options, config).version_bytes, 4 * 153'536);
  options.model.compute = Compute::kBf16;
  int64_t vectors = 0;
  const ParameterLayout layout(config);
  for (const ParameterInfo& info : layout.entries())
    if (info.shape.size() == 1) vectors += info.size;
  EXPECT_GT(vectors, 0);
  EXPECT_EQ(plan_of(options, config).version_bytes, 2 * (153'536 + vectors));
  options.weights.keep = 2;
  options.weights.keep_sampled = false;
  const std::string text = format_plan(plan_of(options, config), resolve(options));
  EXPECT_NE(text.find("kept: 2 versions (weights.keep)"), std::string::npos) << text;
  EXPECT_EQ(text.find("as deltas"), std::string::npos) << text;
  options.lora.rank = 2;
  config.lora = {.rank = 2, .alpha = 4, .targets = {LoraTarget::kQ}, .base = ""};
  const Plan adapter = plan_of(options, config);
  EXPECT_EQ(adapter.version_bytes, 4 * adapter.trained_parameters);
}

TEST(MakePlan, MayHaveNoWorkersHere) {
  RunOptions options = example();
  options.run.listen = "tcp://10.0.0.7:7117";
  options.clusters = {{.name = "west"}};
  options.rollout_processes.pools = {{.name = "far", .workers = 900, .cluster = "west"}};
  options.reward.workers = 0;
  const ModelConfig config = model_of(options);
  const Plan plan = plan_of(options, config);
  EXPECT_EQ(plan.total_bytes(), total_bytes(plan.trainer) + total_bytes(plan.others));
  const std::string text = format_plan(plan, resolve(options));
  EXPECT_NE(text.find("--join tcp://10.0.0.7:7117 --pool far"), std::string::npos) << text;
  EXPECT_NE(text.find("\nin cluster "), std::string::npos) << text;
  EXPECT_NE(text.find(" for the trainer and the others\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("reward worker"), std::string::npos) << text;
  try {
    check_size(plan, {.total_bytes = 1});
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(" and this machine has 1 B"), std::string::npos)
        << error.what();
  }
  // What those elsewhere would refuse is refused here.
  options.rollout.engine.kv_cache_blocks = 1;
  EXPECT_THROW((void)plan_of(options, config), UserError);
}

TEST(MakePlan, RefusesAContextBeyondTheModel) {
  RunOptions options = example();
  ModelConfig config = model_of(options);
  config.max_positions = 100;
  EXPECT_THROW(plan_of(options, config), UserError);
}

TEST(MakePlan, RefusesAKvCacheThatHoldsNoWholeContext) {
  RunOptions options = example();
  options.rollout.engine.kv_cache_blocks = 1;
  try {
    plan_of(options);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rollout.kv_cache_blocks is 1, but one sequence"),
              std::string::npos)
        << error.what();
  }
}

TEST(FormatPlan, ShowsTheDerivation) {
  RunOptions options = example();
  std::string text = format_plan(plan_of(options), resolve(options));
  EXPECT_NE(text.find("16 prompts x 8 samples = 128 samples"), std::string::npos);
  EXPECT_NE(text.find("2 minibatches of 64 samples x 3 epochs = 6 updates"), std::string::npos);
  EXPECT_NE(text.find("80 steps = 10240 samples, 480 updates"), std::string::npos);
  EXPECT_EQ(text.find("warm-up"), std::string::npos);
  options.train.minibatches_per_step = options.train.ppo_epochs = 1;
  text = format_plan(plan_of(options), resolve(options));
  EXPECT_NE(text.find("1 minibatch of 128 samples x 1 epoch = 1 update, lr 1e-06\n"),
            std::string::npos)
      << text;
  // 80 updates: behind a warm-up of 16 the fall takes 64, and one of 160 is half done.
  options.optim = {
      .lr = 1e-3, .warmup_updates = 16, .schedule = LrSchedule::kLinear, .min_lr_ratio = 0};
  EXPECT_EQ(describe_rate(options.optim, 80),
            "0.001, linear: 6.25e-05 in the first update, 1.56e-05 in the last");
  options.optim.warmup_updates = 160;
  EXPECT_EQ(describe_rate(options.optim, 80),
            "0.001, linear: 6.25e-06 in the first update, 0.0005 in the last");
}

// What ends the schedule of a run without run.steps.
TEST(MostSteps, AreThoseOfTheEpochs) {
  TemporaryDirectory folder;
  std::string rows;
  for (int i = 0; i < 50; ++i) rows += fmt::format("{{\"prompt\": \"{}\"}}\n", i);
  RunOptions options = example();
  options.env.name = "text";
  options.env.dataset = folder.write("a.jsonl", rows).string();
  options.env.settings = {{"verifier", "math"}};
  EXPECT_EQ(most_steps(resolve(options)), 80) << "run.steps says it";
  options.run.steps = 0;
  EXPECT_EQ(most_steps(resolve(options)), 0) << "it has no end";
  options.run.epochs = 1;
  EXPECT_EQ(most_steps(resolve(options)), 4) << "three of 16 prompts and one of 2";
  // Epochs have no barrier: 150 prompts are nine steps of 16 and one of 6.
  options.run.epochs = 3;
  EXPECT_EQ(most_steps(resolve(options)), 10);
  const std::string text = format_plan(plan_of(options, model_of(example())), resolve(options));
  EXPECT_NE(text.find("a.jsonl = at most 10 steps, 60 updates\n"), std::string::npos) << text;
  // The dataset that ends last ends the run; 11 and 5 of the prompts of a step are theirs.
  options.datasets = {
      {.name = "a", .ratio = 2, .env = "text", .dataset = options.env.dataset, .epochs = 1},
      {.name = "b", .ratio = 1, .env = "text", .dataset = options.env.dataset, .epochs = 2},
      {.name = "c", .ratio = 0, .env = "frozen_grid"}};
  EXPECT_EQ(most_steps(resolve(options)), 20);
  options.datasets[2].ratio = 1;
  EXPECT_EQ(most_steps(resolve(options)), 0) << "one draws its tasks without end";
}

TEST(FormatPlan, ShowsTheQuotasOfDatasets) {
  RunOptions options = example();
  options.env = {};
  options.datasets = {{.name = "grid", .ratio = 2, .env = "frozen_grid"},
                      {.name = "words", .ratio = 1, .env = "text", .dataset = "/w.jsonl"},
                      {.name = "held", .ratio = 0, .env = "frozen_grid"}};
  options.run.epochs = 2;
  options.scheduler.mode.ahead = 0.125;
  const auto text = [&] {
    return format_plan(plan_of(options, model_of(example())), resolve(options));
  };
  EXPECT_NE(text().find("datasets   grid: 11 of the 16 prompts of a step, frozen_grid\n"
                        "           words: 5 of the 16 prompts of a step, text, 2 epochs of "
                        "/w.jsonl\n"
                        "           held: evaluated only, frozen_grid\n"),
            std::string::npos)
      << text();
  EXPECT_NE(text().find("held takes no part: its ratio is 0, and eval.prompts is 0"),
            std::string::npos)
      << text();
  EXPECT_NE(text().find("scheduler.ahead = 0.125 does nothing: of 5 prompts of words it is not "
                        "one more"),
            std::string::npos)
      << text();
  options.eval.prompts = 1;
  EXPECT_EQ(text().find("takes no part"), std::string::npos);
}

TEST(FormatPlan, ShowsTheWarmUp) {
  RunOptions options = example();
  options.sft.demonstrations = 500;
  options.sft.epochs = 2;
  std::string text = format_plan(plan_of(options), resolve(options));
  EXPECT_NE(text.find("warm-up    500 demonstrations, at most 128 tokens each x 2 epochs, updates "
                      "of 2048 tokens, lr 1e-05\n"),
            std::string::npos)
      << text;

  TemporaryDirectory folder;
  options.sft.demonstrations = 0;
  options.sft.data =
      folder.write("rows.jsonl", "{\"input_ids\": [1, 5, 6]}\n{\"input_ids\": [1, 7]}\n").string();
  options.sft.batch_tokens = 3;
  text = format_plan(plan_of(options), resolve(options));
  EXPECT_NE(text.find("warm-up    2 rows, 5 tokens x 2 epochs = about 4 updates of 3 tokens"),
            std::string::npos)
      << text;
  folder.write("rows.jsonl", "{\"input_ids\": [1, 999]}\n");
  EXPECT_THROW(plan_of(options), UserError);
}

TEST(FormatPlan, ShowsEachStage) {
  RunOptions options = example();
  TemporaryDirectory folder;
  const std::string pairs =
      folder
          .write("pairs.jsonl",
                 "{\"prompt_ids\": [1], \"chosen_ids\": [5], \"rejected_ids\": [6, 7]}\n"
                 "{\"prompt_ids\": [1], \"chosen_ids\": [7], \"rejected_ids\": [8]}\n"
                 "{\"prompt_ids\": [2], \"chosen_ids\": [9], \"rejected_ids\": [8]}\n")
          .string();
  const std::string rows = folder.write("rows.jsonl", "{\"input_ids\": [1, 5, 6]}\n").string();
  folder.write("config.json",
               fmt::format(R"({{"architectures": ["LlamaForCausalLM"], "hidden_size": 32,
  "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "vocab_size": {}, "max_position_embeddings": 4096}})",
                           model_of(options).vocab_size));
  options.policies = {{.name = "teacher", .model = folder.path().string()}};
  options.stages.resize(5);
  options.stages[0].sft.data = rows;
  options.stages[0].until = "3 epochs";
  options.stages[1].reward_model.data = pairs;
  options.stages[1].reward_model.batch_rows = 2;
  options.stages[2].preference.data = pairs;
  options.stages[2].preference.eval_data = pairs;
  options.stages[2].preference.loss.kind = PreferenceLoss::kIpo;
  options.stages[2].until = "12 updates";
  options.stages[3].distill.data = rows;
  options.stages[3].distill.policy = "teacher";
  const Plan plan = plan_of(options);
  const std::string text = format_plan(plan, resolve(options));
  for (const char* line :
       {"warm-up    1 row, 3 tokens x 3 epochs = about 3 updates of 2048 tokens, lr 1e-05\n",
        "rewards    3 rows, 10 tokens x 1 epoch = about 2 updates of 2 pairs, lr 1e-05\n",
        "preference 3 rows, 10 tokens = about 12 updates of 32 rows, loss ipo, beta 0.1, lr 1e-06; "
        "3 rows held out\n",
        "distill    1 row, 3 tokens x 1 epoch = about 1 update of 2048 tokens, loss jsd to "
        "teacher, "
        "lr 1e-05; at most 1.5 KiB of scores on the disk\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  // A reward model is trained beside the policy, in weights of its own.
  options.stages.erase(options.stages.begin() + 1);
  const Plan fewer = plan_of(options);
  EXPECT_GT(plan.certain_bytes(), fewer.certain_bytes());
  // So is a teacher, while it scores.
  options.stages.erase(options.stages.begin() + 2);
  options.policies.clear();
  EXPECT_GT(fewer.certain_bytes(), plan_of(options).certain_bytes());
}

TEST(MakePlan, WarnsOfRatesThatTeachNothing) {
  RunOptions options = example();
  auto warnings = [&] {
    Plan plan = plan_of(options);
    return fmt::format("{}", fmt::join(plan.warnings, "\n"));
  };
  EXPECT_NE(warnings().find("optim.lr is 1e-06, a rate for pretrained weights"), std::string::npos);
  options.optim.lr = 1e-3;
  options.optim.warmup_updates = 480;
  EXPECT_EQ(warnings().find("optim."), std::string::npos) << warnings();
  options.optim.warmup_updates = 481;
  EXPECT_NE(
      warnings().find("optim.warmup_updates is 481, but there are 480 updates: the rate never "
                      "reaches optim.lr"),
      std::string::npos)
      << warnings();
}

TEST(MakePlan, RefusesANucleusThatIsTheLikeliestTokenAlone) {
  RunOptions options = example();
  const ModelConfig config = model_of(options);
  options.rollout.sampling.top_p = 1.01 / static_cast<double>(config.vocab_size);
  (void)plan_of(options, config);
  options.rollout.sampling.top_p = 1.0 / static_cast<double>(config.vocab_size);
  try {
    (void)plan_of(options, config);
    ADD_FAILURE() << "every draw is the likeliest token";
  } catch (const UserError& error) {
    EXPECT_EQ(error.key(), "rollout.sampling.top_p");
    EXPECT_NE(std::string(error.what()).find("every draw is that token"), std::string::npos);
  }
}

}  // namespace
}  // namespace tailrace
