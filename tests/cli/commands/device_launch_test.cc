// model.device: `launch` on the real binary, and on the same one with an emulated GPU.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/run/metrics.h"
#include "core/run/run_directory.h"
#include "tests/cli/run_binary.h"

namespace tailrace {
namespace {

BinaryResult launch_emulated(const std::string& arguments) {
  return run_program(TAILRACE_EMULATED, "launch " + arguments);
}

// The agent of the quickstart with short episodes; no key of it is about devices.
const std::string kShortEpisodes =
    std::string(TAILRACE_SOURCE_DIR) +
    "/configs/quickstart.yaml run.steps=2 rollout.prompts_per_step=4 rollout.group_size=4 "
    "rollout.max_turns=4 rollout.max_context_tokens=128 rollout.max_batch_tokens=256 "
    "sft.demonstrations=8 train.microbatch_tokens=256 sft.epochs=1 train.threads=1 eval.prompts=4 "
    "eval.interval_steps=0 ";
// And a model that an emulated GPU computes in seconds.
const std::string kShortRun = kShortEpisodes +
                              "model.create.layers=2 model.create.hidden_size=32 "
                              "model.create.heads=2 model.create.kv_heads=1 ";

// A step whose groups are all alike is a step too.
const std::string kEveryGroup = "algo.filter_zero_signal=none ";

const std::string kSparse =
    " model.create.experts=4 model.create.experts_per_token=2 model.create.intermediate_size=128";

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Steps of a run whose rollout workers sampled on the device. A trainer there has their bits; one
// on the CPU nearly their numbers, by `bound`.
void expect_sampled_on_device(const RunPaths& run, const std::string& numerics, double bound) {
  const auto rows = read_metrics(run.metrics());
  ASSERT_TRUE(rows);
  int steps = 0;
  for (const MetricsRow& row : rows.value()) {
    const double* foreign = row.find("mismatch/foreign_class_frac");
    const double* difference = row.find("mismatch/max_logprob_diff");
    if (foreign == nullptr) continue;
    ++steps;
    EXPECT_EQ(*foreign, bound > 0 ? 1 : 0);
    ASSERT_NE(difference, nullptr);
    EXPECT_LE(*difference, bound);
    if (bound > 0) {
      EXPECT_GT(*difference, 0);
    }
  }
  EXPECT_EQ(steps, 2);
  const auto log = read_file(run.log("scheduler", 0));
  ASSERT_TRUE(log);
  expect_part(log.value(), "cuda-emulated-" + numerics + "-kshape-exact");
}

// Rule 3, through the whole of a run: no bit of a sampled log-probability differs.
TEST(LaunchDevice, TrainerAndRolloutWorkersComputeOnTheGpu) {
  TemporaryDirectory folder;
  const RunPaths run{folder / "run"};
  const auto launched = launch_emulated(
      kShortRun + kEveryGroup + "rollout.workers=1 model.device=cuda run.dir=" + run.root.string());
  ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
  expect_part(launched.out, "device     emulated GPU (cuda), in f32\n");
  expect_sampled_on_device(run, "w32-a32-kv32", 0);
  // As the run evaluates, so does who repeats it.
  const auto evaluated =
      run_program(TAILRACE_EMULATED, "eval --json --episodes 2 --run " + run.root.string());
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(nlohmann::json::parse(evaluated.out)["device"], "emulated GPU (cuda)");
}

TEST(LaunchDevice, ThreadsOfOneProcessDoTooInBf16) {
  TemporaryDirectory folder;
  const RunPaths run{folder / "run"};
  const auto launched = launch_emulated(
      kShortRun + kEveryGroup + "--in-process model.compute=bf16 run.dir=" + run.root.string());
  ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
  // auto: it is there, and takes the policy.
  expect_part(launched.out, "device     emulated GPU (cuda), in bf16\n");
  expect_sampled_on_device(run, "wbf16-abf16-kvbf16", 0);
}

// The experts that sampled a token travel with it, and are those that the trainer would choose.
TEST(LaunchDevice, ExpertsDoToo) {
  TemporaryDirectory folder;
  const RunPaths run{folder / "run"};
  const auto launched = launch_emulated(kShortRun + kEveryGroup + "algo.router_replay=replay" +
                                        kSparse + " run.dir=" + run.root.string());
  ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
  expect_sampled_on_device(run, "w32-a32-kv32", 0);
  const auto rows = read_metrics(run.metrics());
  ASSERT_TRUE(rows);
  int replayed = 0;
  for (const MetricsRow& row : rows.value()) {
    const double* mismatch = row.find("experts/route_mismatch_frac");
    replayed += mismatch != nullptr;
  }
  EXPECT_EQ(replayed, 2);
}

TEST(LaunchDevice, ARecipeOfTheCpuLeavesTheTrainerThere) {
  TemporaryDirectory folder;
  const RunPaths run{folder / "run"};
  const auto launched =
      launch_emulated(kShortRun + "model.device=cuda algo.name=ppo run.dir=" + run.root.string());
  ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
  expect_part(launched.out,
              "device     emulated GPU (cuda) for rollout workers, in f32; the CPU for the "
              "trainer: a critic (algo.advantage) learns on the CPU alone so far\n");
  expect_sampled_on_device(run, "w32-a32-kv32", 1e-3);
}

// The bytes of `name` in the log of the trainer.
int64_t logged(const RunPaths& run, const std::string& name) {
  const auto log = read_file(run.log("trainer", 0));
  const size_t at = log ? log.value().find(name) : std::string::npos;
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stoll(log.value().substr(at + name.size()));
}

// The weights of the second step, to the bit.
void expect_learned_alike(const RunPaths& run, const std::vector<RunPaths>& others) {
  const std::string weights = "checkpoints/step_000002/model.safetensors";
  const auto expected = read_file(run.root / weights);
  ASSERT_TRUE(expected);
  for (const RunPaths& other : others) {
    const auto learned = read_file(other.root / weights);
    ASSERT_TRUE(learned);
    EXPECT_EQ(learned.value(), expected.value());
  }
}

// The same steps, one GPU in turn, and no more of its memory than was planned.
TEST(LaunchDevice, TrainerAndRolloutWorkerTakeTurns) {
  TemporaryDirectory folder;
  const RunPaths apart{folder / "apart"}, in_turn{folder / "turn"}, threads{folder / "threads"};
  std::string short_run =
      kShortRun + kEveryGroup + "rollout.workers=1 model.device=cuda model.compute=bf16 ";
  // An evaluation of each version: the next step waits for it.
  const std::string rarely = "interval_steps=0";
  short_run.replace(short_run.find(rarely), rarely.size(), "interval_steps=1");
  const auto launch = [&](const RunPaths& run, const std::string& more) {
    const auto launched = launch_emulated(short_run + more + " run.dir=" + run.root.string());
    ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
    expect_sampled_on_device(run, "wbf16-abf16-kvbf16", 0);
  };
  launch(apart, "");
  launch(in_turn, "run.colocate=true");
  launch(threads, "run.colocate=true --in-process");
  expect_learned_alike(apart, {in_turn, threads});
  for (const RunPaths& run : {in_turn, threads}) {
    const int64_t planned = logged(run, "device memory planned="), held = logged(run, " held=");
    EXPECT_LE(held, planned);
    // What the plan rounds up, and nothing else.
    EXPECT_GT(held, planned - (256 << 10));
  }
}

// The same steps on the CPU. A critic teaches something whatever the rewards are.
TEST(LaunchDevice, TheyTakeTurnsOnTheCpuToo) {
  TemporaryDirectory folder;
  const RunPaths apart{folder / "apart"}, in_turn{folder / "turn"}, threads{folder / "threads"};
  const auto launch = [&](const RunPaths& run, const std::string& more) {
    const auto launched =
        run_binary("launch " + kShortRun + "algo.name=ppo rollout.workers=1 model.compute=bf16 " +
                   more + " run.dir=" + run.root.string());
    ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err;
    const auto rows = read_metrics(run.metrics());
    ASSERT_TRUE(rows);
    int measured = 0;
    for (const MetricsRow& row : rows.value()) {
      const double* difference = row.find("mismatch/max_logprob_diff");
      if (difference == nullptr) continue;
      ++measured;
      EXPECT_EQ(*difference, 0);
    }
    EXPECT_EQ(measured, 2);
  };
  launch(apart, "");
  launch(in_turn, "run.colocate=true");
  launch(threads, "run.colocate=true --in-process");
  expect_learned_alike(apart, {in_turn, threads});
}

TEST(LaunchDevice, TurnsNeedOneOfEachAndOneDevice) {
  const auto error = [](const std::string& more) {
    return launch_emulated(kShortRun + "--dry-run run.colocate=true " + more).err;
  };
  expect_part(error(""), "rollout.workers is 2, but run.colocate is true: one trainer and one");
  expect_part(error("rollout.workers=1 scheduler.ahead=1"), "Try scheduler.ahead=0");
  expect_part(error("rollout.workers=1 rollout.sampling.top_k=5 algo.sampling_mask=keep"),
              "Try algo.sampling_mask=none");
  expect_part(error("rollout.workers=1 optim.kind=muon model.device=auto"),
              "run.colocate is true, but the trainer would be on the CPU and the rollout worker on "
              "emulated GPU (cuda): Muon (optim.kind) runs on the CPU alone so far.\n       Try "
              "model.device=cpu, or run.colocate=false.");
  const auto plan = launch_emulated(kShortRun + "--dry-run run.colocate=true rollout.workers=1");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  expect_part(plan.out, "\non the GPU ");
  expect_part(plan.out, "  in turn: ");
  const auto on_cpu =
      launch_emulated(kShortRun + "--dry-run run.colocate=true rollout.workers=1 model.device=cpu");
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  expect_part(on_cpu.out, "\nboth ");
  expect_part(on_cpu.out, "  in turn: ");
}

TEST(LaunchDevice, ADryRunSaysWhereAndWhatItTakes) {
  const std::string dry = kShortRun + "--dry-run ";
  const auto gpu = launch_emulated(dry + "model.device=cuda");
  ASSERT_EQ(gpu.exit_code, 0) << gpu.err;
  expect_part(gpu.out, "\non its GPU ");
  expect_part(gpu.out, "  AdamW moments\n");
  expect_part(gpu.out, "  KV cache\n");
  expect_part(gpu.out,
              " of the 8.0 GiB of emulated GPU (cuda) for the trainer, 2 rollout workers\n");
  EXPECT_EQ(launch_emulated(dry).out, gpu.out);  // auto
  const auto cpu = launch_emulated(dry + "model.device=cpu");
  expect_part(cpu.out, "device     the CPU\n");
  EXPECT_EQ(cpu.out.find("GPU"), std::string::npos) << cpu.out;
  // More than the device has.
  TemporaryDirectory folder;
  const auto large =
      launch_emulated(kShortRun + "rollout.kv_cache_mb=5000 " +
                      "rollout.max_sequences=65536 --run-dir " + (folder / "run").string());
  EXPECT_EQ(large.exit_code, 2) << large.out;
  expect_part(large.err, " GiB of the 8.0 GiB of emulated GPU (cuda)");
}

TEST(LaunchDevice, WhatItCannotComputeStaysOnTheCpu) {
  // Heads of 10: only bf16 minds.
  const std::string odd = kShortEpisodes +
                          "--dry-run model.create.hidden_size=20 model.create.heads=2 "
                          "model.create.kv_heads=1 model.compute=",
                    why =
                        "bf16 wants heads of a multiple of 8 dimensions, and those of the model "
                        "have 10; model.compute=f32 takes them";
  const auto chosen = launch_emulated(odd + "bf16");
  ASSERT_EQ(chosen.exit_code, 0) << chosen.err;
  expect_part(chosen.out, "device     the CPU: " + why + "\n");
  const auto refused = launch_emulated(odd + "bf16 model.device=cuda");
  EXPECT_EQ(refused.exit_code, 2);
  expect_part(refused.err, "model.device is cuda: " + why + ".\n       Try model.device=cpu.\n");
  EXPECT_EQ(launch_emulated(odd + "f32 model.device=cuda").exit_code, 0);
}

TEST(LaunchDevice, WithoutAGpuItIsRefusedAndAutoIsTheCpu) {
  const auto refused = run_binary("launch " + kShortRun + "--dry-run model.device=cuda");
  if (refused.exit_code == 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(refused.exit_code, 2);
  expect_part(refused.err, "model.device is cuda: ");
  expect_part(refused.err, "Try model.device=cpu; 'tailrace doctor' tells what there is.");
  expect_part(run_binary("launch " + kShortRun + "--dry-run").out, "device     the CPU");
}

TEST(LaunchDevice, SupervisedTrainingAloneRunsThereToo) {
  TemporaryDirectory folder;
  folder.write("rows.jsonl", "{\"input_ids\": [1, 403, 407, 261], \"prompt_tokens\": 2}\n");
  folder.write("run.yaml", "model: {path: " + std::string(TAILRACE_SOURCE_DIR) +
                               "/tests/data/models/stories260K}\nsft: {data: rows.jsonl, "
                               "batch_tokens: 64}\ntrain: {microbatch_tokens: 64}\n");
  const std::string arguments = (folder / "run.yaml").string();
  const auto launched =
      launch_emulated(arguments + " model.device=cuda run.dir=" + (folder / "run").string());
  EXPECT_EQ(launched.exit_code, 0) << launched.out << launched.err;
  expect_part(launched.out, "device     emulated GPU (cuda), in f32\n");
  const auto refused =
      launch_emulated(arguments + " --dry-run model.device=cuda sft.optim.kind=muon");
  EXPECT_EQ(refused.exit_code, 2);
  expect_part(refused.err,
              "model.device is cuda, but Muon (sft.optim.kind) runs on the CPU alone so far.\n");
}

}  // namespace
}  // namespace tailrace
