// Runs of an adapter (LoRA), over processes: whoever is killed, the same adapter comes out.
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

class LaunchAdapters : public LaunchTest {
 protected:
  void write_config(const std::string& more) {
    const std::string data = TAILRACE_SOURCE_DIR "/tests/data/";
    std::ofstream(folder_ / "tiny.yaml") << fmt::format(R"(
run: {{name: tiny, seed: 3, steps: 6}}
model: {{path: {0}models/stories260K}}
lora: {{rank: 4, targets: [q_proj, v_proj, down_proj]}}
env:
  name: text
  dataset: {0}prompts/tinystories_prompts.jsonl
  settings: {{verifier: text_rules, stop: "\n"}}
rollout: {{prompts_per_step: 4, group_size: 4, max_turns: 1, max_action_tokens: 24,
  max_context_tokens: 256, workers: 2, threads: 1}}
algo: {{filter_zero_signal: none, kl: {{coef: 0.02}}}}
train: {{microbatch_tokens: 1024, threads: 1}}
optim: {{lr: 0.005}}
eval: {{prompts: 0}}
checkpoint: {{interval_steps: 2}}
{1}
)",
                                                        data, more);
  }
  Digest root_of(int64_t version, const std::string& run = "run") const {
    const auto manifest = read_manifest(paths(run).weights() / fmt::format("p0-v{}.json", version));
    EXPECT_TRUE(manifest) << manifest.failure().message;
    return manifest ? manifest.value().root : Digest();
  }
};

TEST_F(LaunchAdapters, ASynchronousRunThatIsKilledGivesTheSameAdapter) {
  write_config("");
  start_run("other");
  expect_done();
  start_run();
  ASSERT_TRUE(wait_until([&] { return has_step(3); })) << output();
  for (const char* role : {"trainer", "rollout", "scheduler"})
    for (const pid_t pid : workers(role)) ::kill(pid, SIGKILL);
  expect_done();
  EXPECT_EQ(root_of(6), root_of(6, "other"));
  EXPECT_EQ(sum_of_rows("mismatch/max_logprob_diff"), 0);
  EXPECT_GT(sum_of_rows("policy/kl_ref"), 0);
  // As a shell completes the name of a folder.
  const std::string saved = (paths().checkpoints() / "step_000006").string() + "/";
  const std::string merge = "model merge " + saved + " " + (folder_ / "merged").string() + "/";
  const BinaryResult merged = run_binary(merge);
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_TRUE(fs::exists(folder_ / "merged" / "config.json"));
  // What is there is nobody's to write over.
  EXPECT_EQ(run_binary(merge).exit_code, 2);
  // What crosses to rollout workers is the adapter: 4 x (in + out) of 15 matrices.
  EXPECT_LT(fs::file_size(paths().weights() / "p0-v6.safetensors"), 60'000u);
}

TEST_F(LaunchAdapters, AnAsynchronousRunOfSeveralRanksWithAWarmUpComesToItsEnd) {
  std::ofstream(folder_ / "rows.jsonl")
      << "{\"input_ids\": [1, 403, 407, 261, 378]}\n{\"input_ids\": [1, 300, 301, 302]}\n";
  write_config(fmt::format("sft: {{data: {}, optim: {{lr: 0.001}}}}\nscheduler: {{mode: async}}\n",
                           (folder_ / "rows.jsonl").string()));
  start_run("run", {"train.ranks=2", "train.gradient_slots=2", "model.compute=bf16"});
  expect_done();
  EXPECT_TRUE(has_step(6));
  EXPECT_EQ(sum_of_rows("mismatch/foreign_class_frac"), 0);
}

// Once there is a checkpoint, the adapter that a run began with is needed no more: its weights are
// in the reference, and its shape in the run's copy.
TEST_F(LaunchAdapters, ARunGoesOnWithoutTheFolderOfTheAdapterThatItBeganWith) {
  write_config("");
  start_run("other", {"run.steps=1"});
  expect_done();
  const fs::path adapter = folder_ / "adapter";
  std::string config = read_file(folder_ / "tiny.yaml").value();
  const std::string_view lora = "lora: {rank: 4, targets: [q_proj, v_proj, down_proj]}";
  config.replace(config.find(lora), lora.size(),
                 fmt::format("lora: {{adapter: {}}}", adapter.string()));
  std::ofstream(folder_ / "tiny.yaml") << config;
  for (const char* reference : {"start", "base"}) {
    fs::copy(paths("other").checkpoints() / "step_000001", adapter);
    const std::vector<std::string> more = {fmt::format("algo.kl.reference={}", reference)};
    const auto with_steps = [&](int steps) {
      std::vector<std::string> all = more;
      all.push_back(fmt::format("run.steps={}", steps));
      return all;
    };
    start_run(reference, with_steps(2));
    expect_done();
    fs::remove_all(adapter);
    start(command({"--run-dir", paths(reference).root.string(), "run.steps=3"}));
    expect_done();
    start_run(reference, with_steps(4));
    expect_done();
    EXPECT_EQ(newest_checkpoint(paths(reference)), 4);
  }
  // A run that begins does need it.
  start_run();
  EXPECT_EQ(finish().code, 2);
  EXPECT_NE(
      output().find("lora.adapter is " + adapter.string() + ", which has no adapter_config.json"),
      std::string::npos)
      << output();
}

// A resumed run proves that its base is the one that it began beside.
TEST_F(LaunchAdapters, AnotherBaseIsRefusedWhenTheRunGoesOn) {
  write_config("");
  fs::copy(TAILRACE_SOURCE_DIR "/tests/data/models/stories260K", folder_ / "model");
  const std::string model = (folder_ / "model").string();
  start_run("run", {"model.path=" + model, "run.steps=2"});
  expect_done();
  std::fstream weights(folder_ / "model" / "model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-8, std::ios::end);
  weights.write("\x00\x00\x80\x3f", 4);
  weights.close();
  // Nor is the adapter evaluated, continued as text or merged beside it.
  const std::string saved = (paths().checkpoints() / "step_000002").string();
  for (const std::string& arguments :
       {"model generate --model " + saved + " --prompt Once --max-new-tokens 2",
        "model merge " + saved + " " + (folder_ / "merged").string()}) {
    const BinaryResult result = run_binary(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.err;
  }
  EXPECT_NE(run_binary("model generate --model " + saved + " --prompt Once")
                .err.find("was trained beside weights of the root"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "merged"));
  EXPECT_FALSE(fs::exists(folder_ / "merged.unfinished"));
  start(command({"--run-dir", paths().root.string(), "run.steps=4"}));
  EXPECT_NE(finish().code, 0);
  EXPECT_NE(output().find(model + ": the weights of the base are not those"), std::string::npos)
      << output();
}

}  // namespace
}  // namespace tailrace
