#include "cli/config/options.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "core/text/tokenizer.h"
#include "scheduler/state/quotas.h"

namespace tailrace {
namespace {

// One section, several readers. People look for the keys here.
template <class... Parts>
struct Shared {
  std::tuple<Parts&...> parts;

  void visit(OptionVisitor& v) {
    std::apply([&](Parts&... part) { (part.visit(v), ...); }, parts);
  }
};
template <class... Parts>
Shared<Parts...> shared(Parts&... parts) {
  return {std::tie(parts...)};
}

// The isolation of a run's environment, and of each of its datasets.
OptionInfo isolation_info() {
  return {
      .help =
          "of a plugin, a command or an agent. process: in processes of its own, under a deadline "
          "for each call, so that nothing that it does hangs or crashes the run; none: in ours, "
          "faster, with the same trajectories (a plugin alone); sandbox: in processes that see "
          "none of your files but those that the command names, and no network (of an agent: the "
          "policy alone; not of a plugin)",
      .resume = Resume::kMayChange};
}

OptionInfo too_long_info(bool no_file, const AgentSection& agent) {
  return {.help =
              "prompts of its files that leave no room for an answer "
              "(rollout.max_prompt_tokens): refuse: they are an error that lists them; drop: they "
              "are left out, and counted; cut: each keeps its end, and they are counted "
              "(docs/data.md)",
          .idle = agent.plays() ? idle_if(true, "an agent writes its prompts itself", {})
                                : idle_if(no_file, "there is no dataset here", {})};
}

}  // namespace

RunOptions::RunOptions() = default;
RunOptions::RunOptions(const RunOptions&) = default;
RunOptions::RunOptions(RunOptions&&) noexcept = default;
RunOptions& RunOptions::operator=(const RunOptions&) = default;
RunOptions& RunOptions::operator=(RunOptions&&) noexcept = default;
RunOptions::~RunOptions() = default;

void RunSection::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "names the run in reports and in its directory", .resume = Resume::kMayChange});
  v.field("dir", dir,
          {.help = "run directory; one that holds a run is continued; empty: runs/NAME-TIME; "
                   "--run-dir of the command line wins",
           .resume = Resume::kMayChange});
  v.field("seed", seed,
          {.help = "of everything that is drawn at random", .min = 0, .max = kMaxExactInteger});
  v.field("steps", steps,
          {.help = "steps of the run; 0: until the epochs end",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayGrow});
  v.field("epochs", epochs,
          {.help = "passes over the training prompts; 0: as many as the steps need",
           .min = 0,
           .max = kMaxCount});
  v.field("stall_seconds", stall_seconds,
          {.help = "a process of the run that makes no progress for so long is named, killed and "
                   "started again; one that a debugger or a disk holds is only named; 0: never",
           .min = 0,
           .max = 86400,
           .resume = Resume::kMayChange});
  v.field(
      "colocate", colocate,
      {.help = "trainer and rollout worker take turns on one device, in one process: the weights "
               "that products read are one copy, and gradients, activations and KV cache share "
               "their memory",
       .resume = Resume::kMayChange});
  v.field("listen", listen,
          {.help = "tcp://HOST:PORT where workers of other hosts join; empty: none",
           .resume = Resume::kMayChange});
  v.field(
      "keys", keys,
      {.help =
           "folder of `tailrace worker keys`: server.key and who may join; wanted with run.listen",
       .path = true,
       .resume = Resume::kMayChange,
       .idle = idle_if(listen.empty(), "{listen} is empty", {"listen"})});
}

void ModelCreateSection::visit(OptionVisitor& v) {
  v.field("hidden_size", hidden_size,
          {.help = "width of the residual stream; 0: no policy is made", .min = 0, .max = 65536});
  v.field(
      "intermediate_size", intermediate_size,
      {.help = "width of the feed-forward layers; 0: 3 x hidden_size", .min = 0, .max = 262144});
  v.field("layers", layers, {.help = "number of decoder layers", .min = 0, .max = 1024});
  v.field("heads", heads, {.help = "attention heads", .min = 0, .max = 1024});
  v.field("kv_heads", kv_heads,
          {.help = "key and value heads; 0: as many as heads", .min = 0, .max = 1024});
  v.field("experts", experts,
          {.help = "experts of each layer, in place of one feed-forward layer; 0: none",
           .min = 0,
           .max = 4096});
  v.field("experts_per_token", experts_per_token,
          {.help = "of the experts, how many a token goes to; their widths together are "
                   "intermediate_size",
           .min = 1,
           .max = 4096});
  v.field("max_positions", max_positions,
          {.help = "longest context in tokens", .min = 1, .max = kMaxSequenceTokens});
  v.field("rope_theta", rope_theta,
          {.help = "base of the rotary frequencies", .min = 1, .max = 1e12});
  v.field("tie_embeddings", tie_embeddings, {.help = "the output head shares the embeddings"});
}

namespace {

constexpr std::array<OptionInfo::Stranger, 4> kNoSuchCache = {{
    {"fp8", "a cache in 8 bits is not there; bf16 takes half of what f32 takes"},
    {"fp8_e4m3", "a cache in 8 bits is not there; bf16 takes half of what f32 takes"},
    {"fp8_e5m2", "a cache in 8 bits is not there; bf16 takes half of what f32 takes"},
    {"bfloat16", "it is called bf16 here"},
}};

}  // namespace

void ModelSection::visit(OptionVisitor& v) {
  v.field("path", path, {.help = "Hugging Face folder to start from", .path = true});
  v.field("compute", compute,
          {.help = "elements of the weights that products read: bf16 takes half the memory and a "
                   "decode step half the time that reading them takes; auto: bf16 where the "
                   "files of model.path are, else f32. Master weights, gradients and moments are "
                   "float32"});
  v.field("kv_cache_dtype", kv_cache_dtype,
          {.help = "elements of the KV cache, in rollout and training alike: on the CPU f32 (auto) "
                   "or bf16, which takes half of its memory and of the time that long contexts "
                   "are read in; on a GPU those of the weights (auto), and what differs from them "
                   "keeps the run on the CPU",
           .strangers = kNoSuchCache,
           .default_is_older = true});
  v.field("device", device,
          {.help = "what rollout workers and the trainer compute on: cpu, cuda (a GPU), or auto: a "
                   "GPU where their machine has one that takes the policy, of several the first "
                   "that CUDA_VISIBLE_DEVICES leaves. A trainer with a critic or Muon stays on the "
                   "CPU, and scores again what a GPU has sampled",
           .resume = Resume::kMayChange});
  v.section("create", create,
            "a policy from random weights instead; its vocabulary comes from the environment",
            idle_if(!creates(), "{create.hidden_size} is not given", {"create.hidden_size"}));
}

void LoraSection::visit(OptionVisitor& v) {
  const Idle begun = idle_if(!adapter.empty(), "{adapter} says it", {"adapter"});
  v.field("rank", rank,
          {.help = "rank of the adapter's matrices; 0: no adapter, all weights are trained. Its "
                   "best optim.lr is about ten times that of all weights",
           .min = 0,
           .max = kMaxLoraRank,
           .idle = begun});
  v.field("alpha", alpha,
          {.help = "what the adapter adds is multiplied by alpha / rank",
           .min = 1e-3,
           .max = 1e6,
           .idle = begun});
  v.field("targets", targets,
          {.help = "linear layers that get one, of q_proj, k_proj, v_proj, o_proj, gate_proj, "
                   "up_proj and down_proj; empty, or all-linear: all",
           .idle = begun});
  v.field("adapter", adapter,
          {.help = "folder of an adapter (peft) to begin with, which says the three above; empty: "
                   "a fresh one",
           .path = true});
}

void AgentSection::visit(OptionVisitor& v) {
  v.field("command", command,
          {.help = "program of your own that plays an episode by itself, as a list of words "
                   "([python3, agent.py]): one process for each, which finds the policy at "
                   "OPENAI_BASE_URL and its task on stdin (docs/agents.md)",
           .path = true});
  v.field("setup", setup,
          {.help = "program that runs before it, in the same folder", .path = true});
  v.field("score", score,
          {.help = "program that runs behind it and says the reward, where the agent does not",
           .path = true});
  const auto seconds = [&](std::string_view key, double& value, std::string_view help) {
    v.field(key, value, {.help = help, .min = 0.1, .max = 1e6, .resume = Resume::kMayChange});
  };
  seconds("setup_seconds", setup_seconds, "the setup may take; later it is killed");
  seconds("run_seconds", run_seconds,
          "the command may take; later it is killed, and the episode is tried again");
  seconds("score_seconds", score_seconds, "the score may take; later it is killed");
  v.field("episodes", episodes,
          {.help = "that a process of the command plays, one after the other: a task in each line "
                   "of its stdin, a line {\"reward\": ...} of its stdout behind each; 1: a "
                   "process for each",
           .min = 1,
           .max = kMaxCount});
  v.field("at_once", at_once,
          {.help = "processes of a rollout worker; other episodes wait for one to end",
           .min = 1,
           .max = kMaxProcesses,
           .resume = Resume::kMayChange});
  v.field("max_calls", max_calls,
          {.help = "answers of the policy in an episode; who asks for more is cut",
           .min = 1,
           .max = 4096});
  v.field("max_tokens", max_tokens,
          {.help = "of an answer, where rollout.max_action_tokens is 0",
           .min = 1,
           .max = kMaxSequenceTokens});
  v.field("max_request_mb", max_request_mb,
          {.help = "of a call's body (MiB); a longer one is refused (413) before it is read",
           .min = 1,
           .max = kMaxRequestMb,
           .resume = Resume::kMayChange});
  v.field("verifier", verifier,
          {.help = "who scores the last answer with the row of the dataset, for example math; "
                   "empty: the agent says what it was worth"});
  v.field("vocabulary", vocabulary,
          {.help = "the words that are said, for a policy from random weights (model.create)"});
}

void EnvSection::visit(OptionVisitor& v) {
  v.field("plugin", plugin,
          {.help = "library of your own that has the environment (docs/plugins.md); empty: it is "
                   "built in",
           .path = true});
  v.field("command", command,
          {.help = "a program of your own, in any language, that plays the environment: its name "
                   "and arguments, for example [python3, env.py] (docs/environments.md); empty: "
                   "none",
           .path = true});
  v.field("isolation", isolation, isolation_info());
  v.field("name", name,
          {.help = "which environment; 'tailrace env list' lists them. May be left out where "
                   "the plugin has one alone, with a command or an agent, and for supervised "
                   "training alone (sft.data)"});
  v.field("dataset", dataset,
          {.help = "JSONL file of training prompts, plain, gzip or zstd", .path = true});
  v.field("eval_dataset", eval_dataset,
          {.help = "JSONL file of held-out prompts, plain, gzip or zstd", .path = true});
  v.field("columns", columns,
          {.help = "columns of the rows that have other names here, as OURS: THEIRS "
                   "({prompt: question, answer: solution}; docs/data.md)",
           .idle = idle_if(dataset.empty(), "there is no {dataset}", {"dataset", "name"})});
  v.field("too_long", too_long, too_long_info(dataset.empty() && eval_dataset.empty(), agent));
  v.field("settings", settings, {.help = "the environment's own settings"});
  v.section("agent", agent, "a program that plays by itself, in the place of an environment");
}

void DatasetSection::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "names its metrics (reward/NAME/mean) and, on the command line, its keys "
                   "(datasets.NAME.ratio=2)",
           .required = true});
  v.field("ratio", ratio,
          {.help = "its share of rollout.prompts_per_step against the others' ratios, in whole "
                   "prompts that --dry-run shows; 0: it is evaluated and not trained on",
           .min = 0,
           .max = scheduler::kMaxPrompts});
  v.section("agent", agent, "a program that plays by itself, in the place of an environment");
  v.field("plugin", plugin,
          {.help = "library of your own that has the environment; empty: it is built in",
           .path = true});
  v.field("command", command,
          {.help = "a program of your own that plays the environment (docs/environments.md); "
                   "empty: none",
           .path = true});
  v.field("isolation", isolation, isolation_info());
  v.field("env", env,
          {.help = "which environment; 'tailrace env list' lists them. May be left out where "
                   "the plugin has one alone, and with a command or an agent",
           .required = plugin.empty() && command.empty() && !agent.plays()});
  v.field("settings", settings, {.help = "the environment's own settings"});
  v.field("dataset", dataset,
          {.help = "JSONL file of training prompts, plain, gzip or zstd", .path = true});
  v.field("eval_dataset", eval_dataset,
          {.help = "JSONL file of held-out prompts, plain, gzip or zstd", .path = true});
  v.field(
      "columns", columns,
      {.help = "columns of the rows that have other names here, as OURS: THEIRS "
               "({prompt: question, answer: solution}; docs/data.md)",
       .idle = idle_if(dataset.empty() && eval_dataset.empty(), "there is no dataset here", {})});
  v.field("too_long", too_long, too_long_info(dataset.empty() && eval_dataset.empty(), agent));
  v.field(
      "epochs", epochs,
      {.help = "passes over its training prompts; 0: run.epochs. Where they end before the "
               "run, its steps go on with the prompts of the others",
       .min = 0,
       .max = kMaxCount,
       .idle = idle_if(dataset.empty(),
                       "there is no dataset here, and only prompts of a file have epochs", {})});
  v.field("pool", pool,
          {.help = "the pool of rollout workers (rollout.pools) that sample and evaluate it; "
                   "empty: those of any",
           .resume = Resume::kMayChange});
}

void PolicySection::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "what algo.distill.policy or the policy of a stage `distill` names it by, and "
                   "messages",
           .required = true});
  v.field("model", model,
          {.help = "folder of the model (Hugging Face), with the vocabulary of the policy that is "
                   "trained; or url",
           .path = true});
  v.field("url", url,
          {.help = "address of a server of OpenAI's completions API that has it in its place, "
                   "http://HOST:PORT/v1 ('tailrace serve', vLLM)",
           .resume = Resume::kMayChange,
           .default_is_older = true});
  v.field("served_as", served_as,
          {.help = "what the server calls the model; empty: none is named"});
  v.field("at_once", at_once,
          {.help = "samples that a rollout worker asks the server about together",
           .min = 1,
           .max = 64,
           .resume = Resume::kMayChange});
  v.field("key_env", key_env,
          {.help = "the environment variable with the key that the server wants; empty: none",
           .resume = Resume::kMayChange});
}

void ClusterSection::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "what pools, and workers that join from there, name it by",
           .required = true,
           .resume = Resume::kMayChange});
  v.field(
      "link_mbit", link_mbit,
      {.help = "rate of the link between the scheduler's host and there, in Mbit/s: by it a "
               "version of the weights travels as what takes the least time, and --dry-run says "
               "how long that is; 0: not known, and bytes alone count",
       .min = 0,
       .max = 1e6,
       .resume = Resume::kMayChange});
}

void PoolSection::visit(OptionVisitor& v) {
  v.field("name", name,
          {.help = "what datasets, and workers that join, name it by",
           .required = true,
           .resume = Resume::kMayChange});
  v.field(
      "workers", workers,
      {.help = "rollout worker processes in it; of a pool with a cluster: how many are expected "
               "from there",
       .min = 1,
       .max = kMaxProcesses,
       .resume = Resume::kMayChange});
  v.field("max_sequences", max_sequences,
          {.help = "episodes that each of them decodes together; 0: rollout.max_sequences",
           .min = 0,
           .max = 65536,
           .resume = Resume::kMayChange});
  v.field(
      "cluster", cluster,
      {.help = "one of `clusters`, where its workers run: launch starts none of them, they come "
               "by 'tailrace worker --join tcp://...' (run.listen); empty: here, started by "
               "launch",
       .resume = Resume::kMayChange});
}

void RolloutProcesses::visit(OptionVisitor& v) {
  Idle listed = idle_if(!pools.empty(), "{pools} lists the workers", {"pools"});
  listed.is_told = false;
  v.field("workers", workers,
          {.help = "rollout worker processes",
           .min = 1,
           .max = kMaxProcesses,
           .resume = Resume::kMayChange,
           .idle = std::move(listed)});
  v.list("pools", pools,
         "pools of rollout workers, in the place of rollout.workers: a list; a dataset may name "
         "the one that samples it (datasets.NAME.pool), and a worker the one that it joins");
}

void RewardSection::visit(OptionVisitor& v) {
  v.field("workers", workers,
          {.help = "processes that run verifiers; 0: none here, they join from elsewhere "
                   "(run.listen)",
           .min = 0,
           .max = kMaxProcesses,
           .resume = Resume::kMayChange});
  v.field("plugin", plugin,
          {.help = "library of your own that has rewards, which environments name like any "
                   "verifier (docs/plugins.md); empty: none",
           .path = true});
  v.field(
      "isolation", isolation,
      {.help =
           "of a plugin, a command or an agent. process: in processes of its own, under a deadline "
           "for each score; none: in the reward workers (a plugin alone); sandbox: in "
           "processes that see no network and none of your files but those that the command "
           "names (a command alone)",
       .resume = Resume::kMayChange});
  v.field("settings", settings, {.help = "the settings of the plugin's rewards"});
  v.field(
      "command", command,
      {.help = "a program of your own, in any language, that scores all episodes in the place of "
               "a verifier: its name and arguments, for example [python3, reward.py] "
               "(docs/rewards.md); empty: none",
       .path = true});
  v.field(
      "batch", batch,
      {.help = "episodes that a process of a command is given together, at most; a reward worker "
               "scores 8 at once, or a batch where that is more, and has a process for each "
               "batch",
       .min = 1,
       .max = 256,
       .resume = Resume::kMayChange,
       .idle = idle_if(!has_commands(), "no program scores ({command})", {"command", "parts"})});
  v.field(
      "start_timeout_s", start_timeout_s,
      {.help = "a process of a command may take so much longer for its first answer than "
               "scheduler.verify_seconds leave for one (s)",
       .min = 1e-3,
       .max = 1e8,
       .resume = Resume::kMayChange,
       .idle = idle_if(!has_commands(), "no program scores ({command})", {"command", "parts"})});
  v.field(
      "model", model,
      {.help = "folder of a reward model that scores all episodes in the place of a verifier, on "
               "the CPU (docs/rewards.md); empty: none",
       .path = true,
       .default_is_older = true});
  v.field("model_tokens", model_tokens,
          {.help = "of a conversation that the reward model reads, at most: a longer one loses its "
                   "beginning; 0: the model's positions",
           .min = 0,
           .max = 1 << 24,
           .idle = idle_if(!has_model(), "no reward model scores ({model})", {"model", "stage"})});
  v.field("stage", stage,
          {.help = "a stage of this run that trains a reward model, which scores all episodes in "
                   "the place of reward.model: its name, as reward_model; empty: none",
           .default_is_older = true});
  v.section("judge", judge, "a language model that is asked what an episode is worth",
            idle_if(!judge.is_given(), "{judge.url} is empty", {"judge.url"}));
  v.list(
      "parts", parts,
      "several rewards whose weighted sum is the reward, in the place of reward.command: a list; "
      "each is in the metrics as env/reward_NAME");
}

void JudgeSection::visit(OptionVisitor& v) {
  v.field("url", url,
          {.help = "address of a server of OpenAI's chat API, http://HOST:PORT/v1, whose model "
                   "scores all episodes, or a part of reward.parts with the verifier judge; empty: "
                   "nobody judges",
           .resume = Resume::kMayChange,
           .default_is_older = true});
  v.field("model", model, {.help = "what the server calls the model; empty: none is named"});
  v.field("prompt", prompt,
          {.help = "what it is asked: a text in which {prompt}, {response}, {conversation} and "
                   "{row} stand for parts of the episode (docs/rewards.md)"});
  v.field("answer", answer,
          {.help = "the words in its answer behind which the number stands, the last time"});
  v.field("best", best,
          {.help = "the number that is a reward of 1; one above it, or below 0, is no score",
           .min = 1e-6,
           .max = 1e9});
  v.field("max_tokens", max_tokens, {.help = "of its answer", .min = 1, .max = 1 << 20});
  v.field("at_once", at_once,
          {.help = "episodes that a reward worker asks about at once",
           .min = 1,
           .max = 256,
           .resume = Resume::kMayChange});
  v.field("key_env", key_env,
          {.help = "the environment variable with the key that the server wants; empty: none",
           .resume = Resume::kMayChange});
}

void RewardPart::visit(OptionVisitor& v) {
  v.field("name", name, {.help = "names its metric (env/reward_NAME)", .required = true});
  v.field("weight", weight,
          {.help = "what it is multiplied with in the sum; 0: it is only measured",
           .min = -kMaxCount,
           .max = kMaxCount});
  v.field("command", command, {.help = "a program, as reward.command", .path = true});
  v.field("verifier", verifier,
          {.help = "or a verifier, by the name that an environment would give it; judge is that "
                   "of reward.judge"});
}

bool RewardSection::has_commands() const {
  return !command.empty() ||
         std::ranges::any_of(parts, [](const RewardPart& part) { return !part.command.empty(); });
}

namespace {

Idle no_rows_of(std::string_view section, const RowOptions& rows) {
  return idle_if(rows.data.empty(), fmt::format("{{{}.data}} is empty", section),
                 {fmt::format("{}.data", section)});
}

Idle no_supervised(const SftOptions& sft) {
  return idle_if(sft.data.empty() && sft.demonstrations == 0,
                 "neither {sft.data} nor {sft.demonstrations} is given",
                 {"sft.data", "sft.demonstrations"});
}

}  // namespace

void RlStage::visit(OptionVisitor& v) {
  v.field("steps", steps,
          {.help = "run.steps; 0: as `until` or run.steps says",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayGrow});
}

void StageSection::visit(OptionVisitor& v) {
  v.field("name", name, {.help = "of its files and of its line in the journal; empty: its kind"});
  v.section("sft", sft, "supervised training, as the section of this name", no_supervised(sft));
  v.section("reward_model", reward_model,
            "training of a reward model, as the section of this name; the policy stays as it is",
            no_rows_of("reward_model", reward_model));
  v.section("preference", preference, "training on preferences, as the section of this name",
            no_rows_of("preference", preference));
  v.section("distill", distill, "distillation from rows, as the section of this name",
            no_rows_of("distill", distill));
  v.section("rl", rl, "reinforcement learning, which is the last stage: its keys are the run's");
  v.field("until", until,
          {.help = "where it ends: '2 epochs' or '200 updates' of its rows, '100 steps' of rl; "
                   "empty: as its own keys say"});
}

void FilesSection::visit(OptionVisitor& v) {
  v.field("max_row_mb", max_row_mb,
          {.help = "of a line of a dataset or of sft.data (MiB); a longer one is refused before it "
                   "is read whole",
           .min = 1,
           .max = kMaxRowMb,
           .resume = Resume::kMayChange});
  v.field("max_file_mb", max_file_mb,
          {.help = "of all lines of such a file (MiB), unpacked: gzip and zstd are unpacked no "
                   "further",
           .min = 1,
           .max = kMaxFileMb,
           .resume = Resume::kMayChange});
}

void LogSection::visit(OptionVisitor& v) {
  v.field("level", level,
          {.help = "least important lines of the logs", .resume = Resume::kMayChange});
}

void RunOptions::visit(OptionVisitor& v) {
  auto rollout_section = shared(step, rollout_processes, rollout);
  auto checkpoint_section = shared(save, checkpoint);
  auto eval_section = shared(eval, rollout.evaluation);
  Idle listed =
      idle_if(!datasets.empty(), "{datasets} lists what the policy acts in", {"datasets"});
  listed.is_told = false;
  Idle no_evaluation = idle_if(eval.prompts == 0, "{eval.prompts} is 0", {"eval.prompts"});
  no_evaluation.advice = "Write eval.prompts: N, the held-out rows to evaluate, or remove it.";
  const Idle staged = idle_if(!stages.empty(), "{stages} lists the trainings", {"stages"});
  // The order of config.yaml and of docs/configuration.md.
  v.section("run", run, "the run as a whole");
  v.section("model", model, "the policy");
  v.section("lora", lora, "an adapter that is trained in the place of all weights (LoRA)",
            idle_if(!lora.trains(), "{lora.rank} is 0", {"lora.rank"}));
  v.list("policies", policies,
         "models beside the policy, whose weights never change, as a teacher: a list; each "
         "rollout worker holds that of algo.distill.policy, the trainer that of distill.policy "
         "while it scores the rows");
  v.section("chat", chat, "how what is said to the policy is written",
            idle_if(model.creates(), "a policy of model.create has no chat template",
                    {"model.create.hidden_size"}));
  v.list("datasets", datasets,
         "what the policy acts in, where that is more than one thing: a list, in the place of the "
         "section `env`");
  v.section("env", env, "what the policy acts in", listed);
  v.list("clusters", clusters,
         "where workers of other hosts run (rollout.pools.NAME.cluster): a list");
  v.section("rollout", rollout_section, "how episodes are made");
  v.section("reward", reward, "who scores episodes");
  v.list("stages", stages,
         "trainings that follow each other, each from the weights that the one before it left: a "
         "list, in the place of the sections `sft`, `reward_model`, `preference` and `distill`");
  const auto unless_listed = [&](Idle idle) { return stages.empty() ? std::move(idle) : staged; };
  v.section("sft", sft, "supervised training: a warm-up before the first step, or a run by itself",
            unless_listed(no_supervised(sft)));
  v.section("reward_model", reward_model,
            "training of a reward model from preferences, behind the section `sft`; it goes to "
            "RUN/reward_model, and rewards episodes where reward.stage names it",
            unless_listed(no_rows_of("reward_model", reward_model)));
  v.section("preference", preference,
            "training on preferences (DPO and its kin), behind the sections `sft` and "
            "`reward_model`: before the first step, or a run by itself",
            unless_listed(no_rows_of("preference", preference)));
  v.section("distill", distill,
            "distillation from rows that a teacher scores, behind the section `preference`: before "
            "the first step, or a run by itself",
            unless_listed(no_rows_of("distill", distill)));
  v.section("train", train, "how a batch becomes updates");
  v.section("algo", algo, "the policy loss");
  v.section("critic", critic, "the value head of algo.advantage=gae",
            idle_if(!needs_critic(algo.advantage),
                    fmt::format("{{algo.advantage}} is {}", name_of(algo.advantage)),
                    {"algo.advantage", "algo.name"}));
  v.section("optim", optim, "the optimizer");
  v.section("scheduler", scheduler, "how a run schedules, leases, retries and storage");
  v.section("eval", eval_section, "evaluation on held-out prompts", no_evaluation);
  v.section("checkpoint", checkpoint_section, "what is saved to continue from");
  v.section("weights", weights, "which published weights are kept");
  v.section("files", files, "what is read of the files that a person brings");
  v.section("log", log, "what is logged");
}

std::map<std::string, OptionDoc> options_by_key(const RunOptions& options) {
  std::map<std::string, OptionDoc> by_key;
  for (const SectionDoc& section : describe_options(options))
    for (const OptionDoc& option : section.options) by_key.emplace(option.key, option);
  return by_key;
}

ModelConfig model_config(const ModelCreateSection& create, int64_t vocab_size) {
  ModelConfig config;
  config.hidden_size = create.hidden_size;
  config.intermediate_size =
      create.intermediate_size > 0 ? create.intermediate_size : 3 * create.hidden_size;
  config.num_layers = create.layers;
  config.num_heads = create.heads;
  config.num_kv_heads = create.kv_heads > 0 ? create.kv_heads : create.heads;
  // validate() has refused sizes that do not divide.
  config.head_dim = create.hidden_size / create.heads;
  config.vocab_size = vocab_size;
  config.max_positions = create.max_positions;
  config.rope_theta = create.rope_theta;
  if (create.experts > 0) {
    config.architecture = "Qwen3MoeForCausalLM";
    config.qk_norm = true;
    config.sparse.assign(static_cast<size_t>(create.layers), true);
    config.num_experts = create.experts;
    config.experts_per_token = create.experts_per_token;
    config.expert_size = config.intermediate_size / create.experts_per_token;
    config.normalised_experts = true;
  }
  config.tie_embeddings = create.tie_embeddings;
  // The tokens that write_word_tokenizer() gives the vocabulary that comes with such a policy.
  config.bos_token = text::kBosWord;
  config.eos_tokens = {text::kEosWord};
  return config;
}

}  // namespace tailrace
