// What a person reads after a mistake: tests/golden/messages/TOPIC.txt, each call with its message.
// A message says where, what was found, what is accepted, and what to try.
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/run_binary.h"
#include "tests/golden/golden.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig =
    "run: {steps: 4}\n"
    "model:\n"
    "  create: {layers: 1, hidden_size: 32, heads: 4, kv_heads: 2, intermediate_size: 64, "
    "max_positions: 256}\n"
    "env:\n"
    "  name: frozen_grid\n"
    "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128}\n"
    "eval: {prompts: 8}\n";
constexpr const char* kStoriesRun =
    "run: {steps: 4}\n"
    "model: {path: model}\n"
    "env:\n"
    "  name: text\n"
    "  dataset: rows.jsonl\n"
    "  settings: {verifier: number}\n";

class Messages : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { folder_.write(name, text); }
  void copy_model(const std::string& name) {
    fs::copy(fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/stories260K", folder_.path() / name,
             fs::copy_options::recursive);
  }
  // Every call of a topic must be refused.
  void call(const std::string& arguments, const std::string& input = "") {
    auto result = run_binary(arguments, input, folder_.path().string());
    EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2)
        << arguments << ": " << result.exit_code << "\n"
        << result.out;
    for (size_t at; (at = result.err.find(folder_.path().string())) != std::string::npos;)
      result.err.replace(at, folder_.path().string().size(), "DIR");
    text_ += "$ " + arguments + "\n";
    if (!input.empty()) text_ += "< " + input + (input.ends_with('\n') ? "" : "\n");
    text_ += result.err + "\n";
  }
  void launch(const std::string& overrides) { call("launch --dry-run a.yaml " + overrides); }
  // A whole config, shown before its message.
  void launch_file(const std::string& config) {
    write("bad.yaml", config);
    text_ += "bad.yaml:\n" + config + (config.ends_with('\n') ? "" : "\n");
    call("launch --dry-run bad.yaml");
  }
  void expect(const std::string& topic) { expect_golden("messages/" + topic + ".txt", text_); }

  TemporaryDirectory folder_;
  std::string text_;
};

TEST_F(Messages, OfConfigFiles) {
  call("launch --dry-run none.yaml");
  call("launch --dry-run a.yaml --learning_rate 1e-5");
  launch_file("");
  launch_file("run: {steps: 4\n");
  launch_file("- run\n");
  launch_file("run: 4\n");
  launch_file("run: {steps: four}\n");
  launch_file("run:\n\tsteps: 4\n");
  launch_file(std::string(kConfig) + "run: {seed: 1}\n");
  launch_file(std::string(kConfig) + "algorithm: {name: grpo}\n");
  launch_file(std::string(kConfig) + "algo:\n  kl: {coeff: 0.1}\n");
  launch_file("extends: none.yaml\n");
  launch_file("extends: bad.yaml\n");
  launch_file("env: {name: frozen_grid}\nrollout: {sampling: 1}\n");
  launch_file("run: &run {steps: *run}\n");
  ASSERT_EQ(::mkfifo((folder_.path() / "pipe.yaml").c_str(), 0600), 0);
  call("launch --dry-run pipe.yaml");
  call("launch --dry-run " + std::string(300, 'x') + ".yaml");
  expect("config_files");
}

TEST_F(Messages, OfListsOfDatasets) {
  copy_model("model");
  write("rows.jsonl", "{\"prompt\": \"2 + 2 =\", \"answer\": 4}\n");
  write("a.yaml",
        "run: {steps: 4}\n"
        "model: {path: model}\n"
        "datasets:\n"
        "  - {name: sums, ratio: 3, env: text, dataset: rows.jsonl, settings: {verifier: number}}\n"
        "  - name: grid\n"
        "    env: frozen_grid\n"
        "rollout: {prompts_per_step: 4, group_size: 4, max_context_tokens: 128}\n");
  for (const char* overrides : {
           "datasets=3",
           "datasets=[3]",
           "'datasets=[{name: a}]'",
           "'datasets=[{name: a, env: paced}, {name: a, env: paced}]'",
           "'datasets=[{name: a b, env: paced}]'",
           "datasets.gird.ratio=2",
           "datasets.grid.rato=2",
           "datasets.grid.ratio=-1",
           "datasets.grid.ratio=0.01",
           "datasets.grid.ratio=0 datasets.sums.ratio=0",
           "rollout.prompts_per_step=1",
           "datasets.grid.env=frozen_gird",
           "datasets.grid.settings.colour=red",
           "datasets.grid.epochs=2",
           "datasets.grid.dataset=rows.jsonl",
           "datasets.sums.dataset=none.jsonl",
           "datasets.sums.columns.prompt=question",
           "datasets.sums.prompt_key=question",
           "datasets.sums.settings.verifier=numbr",
           "eval.prompts=8",
           "eval.prompts=8 datasets.sums.eval_dataset=rows.jsonl",
           "env.name=paced",
           "domain_interleave_probs=[1]",
           "run.steps=0 run.epochs=1",
           "run.steps=0 datasets.grid.ratio=0",
           "rollout.pools=3",
           "'rollout.pools=[{name: a, workers: 0}]'",
           "'rollout.pools=[{name: a}, {name: a}]'",
           "'rollout.pools=[{name: a b}]'",
           "'rollout.pools=[{name: a, workers: 1000}, {name: b, workers: 25}]'",
           "'rollout.pools=[{name: a}]' rollout.workers=3",
           "datasets.grid.pool=large",
           "'rollout.pools=[{name: small}, {name: large}]' datasets.grid.pool=lagre",
           "'rollout.pools=[{name: small}, {name: large}]' eval.prompts=2 eval.pool=lagre",
           "eval.prompts=2 eval.pool=held_out",
       })
    launch(overrides);
  expect("dataset_lists");
}

TEST_F(Messages, OfKeys) {
  write("a.yaml", kConfig);
  for (const char* overrides : {
           "run.steps",
           "run.steps=",
           "run.steps=-1",
           "run.steps=1.5",
           "run.steps=1e30",
           "run.steps=0",
           "run.epochs=2",
           "run.seed=x",
           "model.create.heads=3",
           "model.create.hidden_size=0",
           "model.create.layers=0",
           "model.path=x model.create.hidden_size=32",
           "env.name=frozen_gird",
           "env.settings.max_turns=x",
           "env.settings.colour=red",
           "env.dataset=x.jsonl",
           "rollout.group_size=0",
           "rollout.group_size=1",
           "rollout.group_size=9000000000000000000",
           "rollout.workers=100000",
           "rollout.max_sequences=1000000000",
           "rollout.group_sze=8",
           "rollout.prompts_per_step=0",
           "rollout.block_tokens=12",
           "rollout.max_turns=15",
           "rollout.max_context_tokens=512",
           "rollout.kv_cache_blocks=1",
           "rollout.sampling.temperature=0",
           "rollout.sampling.temperature=nan",
           "rollout.sampling.temperature=1e-300",
           "rollout.sampling.top_p=0",
           "train.minibatches_per_step=5",
           "train.microbatch_tokens=100",
           "algo.name=ppoo",
           "algo.name=dpo",
           "algo.name=bnpo",
           "algo.name=grop",
           "algo.advantage=mean",
           "algo.clip_c=0.5",
           "algo.kl.estimator=k1",
           "algo.correction.cap=3 algo.correction.kind=none",
           "optim.lr=-1",
           "optim.lr=fast",
           "optim.betas=[0.9]",
           "optim.betas=[0.9,1]",
           "optim.schedule=cosin",
           "sft.epochs=3",
           "sft.data=x.jsonl sft.demonstrations=3",
           "sft.data=x.jsonl",
           "eval.prompts=0 eval.interval_steps=5",
           "scheduler.lease_seconds=0",
           "scheduler.mode=fast",
           "scheduler.ahead=-1",
           "scheduler.max_staleness=3",
           "scheduler.mode=tail_batching scheduler.tail=wait",
           "scheduler.mode=partial scheduler.launch_prompts_ratio=1",
           "scheduler.mode=async scheduler.ahead=2 scheduler.max_staleness=1 "
           "scheduler.on_stale=wait",
           "scheduler.mode=streaming train.ppo_epochs=2",
           "scheduler.mode=streaming algo.advantage=group_mean_batch_std",
           "scheduler.mode=streaming scheduler.on_stale=wait",
           "async.max_stalenes=3",
           "scheduler.breaker_share_ratio=2",
           "scheduler.quarantine_faults=0",
           "checkpoint.interval_steps=0",
           "log.level=loud",
       })
    launch(overrides);
  expect("keys");
}

TEST_F(Messages, OfModels) {
  copy_model("model");
  write("rows.jsonl", "{\"prompt\": \"2 + 2 = \", \"answer\": \"4\"}\n");
  write("a.yaml", kStoriesRun);
  launch("model.path=none");
  launch("model.path=a.yaml");
  fs::rename(folder_ / "model/tokenizer.json", folder_ / "tokenizer.json");
  launch("");
  write("model/tokenizer.json", "{\"model\": ");
  launch("");
  write("model/tokenizer.json", "{}");
  launch("");
  fs::rename(folder_ / "tokenizer.json", folder_ / "model/tokenizer.json");
  const fs::path weights = folder_ / "model/model.safetensors";
  const auto whole = fs::file_size(weights);
  fs::resize_file(weights, whole / 2);
  launch("");
  fs::resize_file(weights, 4);
  launch("");
  fs::remove(weights);
  launch("");
  write("model/config.json", "{\"model_type\": \"llama\"}");
  launch("");
  write("model/config.json", "{\"model_type\": \"mamba\"}");
  launch("");
  expect("models");
}

// Files as they come from a hub, from a half download, from a program that trains adapters.
TEST_F(Messages, OfModelsFromElsewhere) {
  copy_model("model");
  write("rows.jsonl", "{\"prompt\": \"2 + 2 = \", \"answer\": \"4\"}\n");
  write("a.yaml", kStoriesRun);
  launch("model.path=Qwen/Qwen2.5-0.5B");
  for (const char* command : {"model generate --prompt a --model", "model score --model",
                              "eval --env frozen_grid --model", "model tokenize --tokenizer"})
    call(std::string(command) + " Qwen/Qwen2.5-0.5B");
  fs::create_directory(folder_ / "adapter");
  write("adapter/adapter_config.json",
        "{\"base_model_name_or_path\": \"Qwen/Qwen2.5-0.5B\", \"peft_type\": \"LORA\"}");
  launch("model.path=adapter");
  fs::create_directory(folder_ / "gguf");
  write("gguf/qwen2.5-0.5b-q4_k_m.gguf", "");
  launch("model.path=gguf");
  launch("model.path=gguf/qwen2.5-0.5b-q4_k_m.gguf");
  const fs::path weights = folder_ / "model/model.safetensors";
  fs::rename(weights, folder_ / "model/pytorch_model.bin");
  launch("");
  fs::remove(folder_ / "model/pytorch_model.bin");
  write("model/model.safetensors",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1044992\n");
  launch("");
  fs::remove(weights);
  write("model/model-00001-of-00002.safetensors", "");
  launch("");
  write("model/model.safetensors.index.json",
        "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
        "\"b\": \"model-00002-of-00002.safetensors\"}}");
  launch("");
  write("model/config.json",
        "{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"vision_config\": {}}");
  launch("");
  write("model/config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_act\": \"silu\", "
        "\"logits_scaling\": 8.0}");
  launch("");
  expect("models_from_elsewhere");
}

TEST_F(Messages, OfDatasets) {
  copy_model("model");
  write("a.yaml", kStoriesRun);
  launch("");
  for (const char* rows : {"", "\n\n", "[]\n", "{\"prompt\": 3}\n", "{\"text\": \"x\"}\n",
                           "{\"prompt\": \"a\"}\n{\"prompt\": \n"}) {
    write("rows.jsonl", rows);
    text_ += std::string("rows.jsonl:\n") + rows + "\n";
    launch("");
  }
  write("rows.jsonl", "{\"prompt\": \"\xFF\"}\n");
  launch("");
  write("rows.jsonl", "{\"prompt\": \"a\", \"answer\": \"1\"}\n");
  launch("eval.prompts=9 env.eval_dataset=rows.jsonl");
  launch("env.columns.prompt=question");
  launch("env.prompt_key=question");
  launch("env.settings.verifier=numbr");
  launch("env.settings.verifier=");
  for (const char* rows :
       {"{\"prompt\": \"a\", \"anwser\": \"1\"}\n", "{\"prompt\": \"a\", \"answer\": \"one\"}\n",
        "{\"prompt\": \"a\", \"answer\": \"1\", \"extrct\": \"strict\"}\n"}) {
    write("rows.jsonl", rows);
    text_ += std::string("rows.jsonl:\n") + rows + "\n";
    launch("");
  }
  write("rows.jsonl", "{\"prompt\": \"a\", \"answer\": \"1\"}\n");
  launch("rollout.max_prompt_tokens=1 rollout.max_response_tokens=8 env.columns.prompt=answer");
  for (const char* rows : {"{\"input_ids\": [1, 9999]}\n", "{\"input_ids\": []}\n",
                           "{\"input_ids\": [1, 2], \"loss_mask\": [1]}\n", "{}\n"}) {
    write("sft.jsonl", rows);
    text_ += std::string("sft.jsonl:\n") + rows + "\n";
    launch("sft.data=sft.jsonl");
  }
  expect("datasets");
}

TEST_F(Messages, OfCommands) {
  copy_model("model");
  call("");
  call("lanch");
  call("--versoin");
  call("launch");
  call("launch a.yaml b.yaml");
  call("launch --run-dir none");
  call("model score");
  call("model score --model none", "{}");
  call("model score --model model", "{\"input_ids\": [1, 99999]}\n");
  call("model score --model model", "nonsense\n");
  call("model score --model model", "{}");
  call("model tokenize --tokenizer none", "{}");
  call("model tokenize --tokenizer model", "{\"txt\": \"a\"}\n");
  call("model generate --model model --temperature -1 --prompt a");
  call("model generate --model model --temperature nan --prompt a");
  call("model generate --model model --temperature 1e-300 --prompt a");
  call("model generate --model model --seed -1 --prompt a");
  call("model generate --model model --seed 99999999999999999999 --prompt a");
  call("model generate --model model --max-tokens x --prompt a");
  call("eval --model model");
  call("eval --model model --env frozen_gird");
  call("eval --run none");
  call("report none");
  call("report none --perfetto trace.json");
  call("status none --sample");
  call("status none --sample prompt=1");
  write("run/config.yaml", "run: {steps: 4}\n");
  call("status run --sample 12");
  call("status run --sample prompt=x");
  call("status run --sample prompt=1 member=2");
  call("bench none");
  call("worker --role cook");
  call("worker --join runs/x --relay tcp://10.0.0.7:7702");
  expect("commands");
}

TEST_F(Messages, OfRunDirectories) {
  write("a.yaml", kConfig);
  write("run/config.yaml", "run: {steps: 4}\n");
  call("launch a.yaml --run-dir run");
  call("launch a.yaml --run-dir a.yaml");
  call("launch a.yaml --run-dir one run.dir=two");
  call("report run");
  call("eval --run run");
  expect("run_directories");
}

TEST_F(Messages, OfHardware) {
  write("a.yaml", "rollout: {prompts_per_step: 4, max_context_tokens: 2000}\n");
  write("h.yaml",
        "hardware:\n"
        "  - {name: h100, step_ms: 8}\n"
        "  - {name: h20, step_ms: 10}\n");
  const auto plan = [&](const std::string& arguments) {
    call("plan a.yaml --hardware h.yaml " + arguments);
  };
  call("plan");
  call("plan none.yaml --hardware h.yaml");
  call("plan a.yaml --hardware h10");
  call("plan a.yaml --hardware none.yaml");
  call("plan a.yaml --price 2");
  call("plan a.yaml hardware.workers=4");
  plan("hardware.rollout_hardware=h200");
  plan("hardware.trainer.hardware=cpu");
  plan("hardware.h20.tokens_per_s=50000");
  plan("hardware.a100.tokens_per_s=50000");
  plan("hardware.h100.token_per_s=5000");
  plan("hardware.pools='[{name: far}]'");
  plan("hardware.workers=4 rollout.pools='[{name: a}, {name: b}]'");
  plan("hardware.episodes.prompt_tokens=2000");
  plan("--like runs/none");
  plan("hardware.days=0");
  plan("run.steps=0");
  plan("--modes sync,asink");
  plan("--modes sync --out made");
  plan("--out .");
  write("wrong.yaml", "hardware:\n  - name: mine\n    devices: 0\nepisode: {turns: 2}\n");
  call("plan a.yaml --hardware wrong.yaml");
  write("sft.yaml", "model: {path: model}\nsft: {data: rows.jsonl}\n");
  call("plan sft.yaml --hardware h.yaml");
  // The names and the section that were there before.
  write("old.yaml", "run: {steps: 4}\nsimulate:\n  workers: 2\n");
  call("simulate");
  call("simulate old.yaml --modes sync,async --out made simulate.workers=4");
  call("simulate --json runs/old.yaml simulate.hardware.h20.step_ms=9 'env.name=a b'");
  call("plan old.yaml --hardware h100-80");
  call("plan old.yaml --quick");
  call("launch old.yaml");
  call("launch --dry-run a.yaml simulate.workers=4");
  expect("hardware");
}

}  // namespace
}  // namespace tailrace
