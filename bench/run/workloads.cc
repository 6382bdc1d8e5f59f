#include "bench/run/workloads.h"

#include <algorithm>

#include <fmt/format.h>

namespace tailrace {

std::vector<Arm> chosen(const std::vector<Arm>& all, const std::vector<std::string>& names) {
  std::vector<Arm> some;
  for (const Arm& arm : all)
    if (names.empty() || std::ranges::count(names, arm.name) > 0) some.push_back(arm);
  return some;
}

std::vector<std::string> names_of(const std::vector<Arm>& arms) {
  std::vector<std::string> names;
  for (const Arm& arm : arms) names.push_back(arm.name);
  return names;
}

const std::vector<Arm>& paced_workloads() {
  static const std::vector<Arm> all = {
      {"length_tailed",
       {"env.settings.turns_sigma=0.65", "env.settings.member_turns_sigma=1.13",
        "env.settings.endless_prompts=0.18", "env.settings.endless_members=0.08",
        "env.settings.max_turns=186", "env.settings.latency_ms=8"}},
      {"latency_injected",
       {"env.settings.latency_ms=12", "env.settings.latency_sigma=1.5",
        "env.settings.max_latency_ms=600"}},
      {"single_turn",
       {"env.settings.turns=1", "env.settings.latency_ms=60", "env.settings.latency_sigma=1.3",
        "env.settings.max_latency_ms=1860"}}};
  return all;
}

const std::vector<Arm>& paced_modes() {
  static const std::vector<Arm> all = {
      {"sync", {"scheduler.mode=sync"}},
      {"tail_batching", {"scheduler.mode=tail_batching"}},
      {"partial", {"scheduler.mode=partial"}},
      {"async_0.5", {"scheduler.mode=async", "scheduler.ahead=0.5"}},
      {"async_1", {"scheduler.mode=async", "scheduler.ahead=1"}},
      {"async_2", {"scheduler.mode=async", "scheduler.ahead=2"}},
      {"streaming", {"scheduler.mode=streaming"}},
      {"async_1_redundant",
       {"scheduler.mode=async", "scheduler.ahead=1", "scheduler.launch_members_ratio=1.25"}},
      {"async_1_redundant_1.5",
       {"scheduler.mode=async", "scheduler.ahead=1", "scheduler.launch_members_ratio=1.5"}},
      {"async_1_redundant_2",
       {"scheduler.mode=async", "scheduler.ahead=1", "scheduler.launch_members_ratio=2"}}};
  return all;
}

bool is_on_policy(const std::string& mode) { return mode == "sync" || mode == "tail_batching"; }

// What all runs share. Every body stays on the disk until the bench has read it. Training is small
// beside sampling, and has one thread: two of them meet at barriers, where what else runs on the
// machine would be measured.
std::string paced_config(const PacedConfig& config) {
  return fmt::format(R"(run: {{name: bench_modes}}
model:
  create: {{hidden_size: 64, intermediate_size: 192, layers: 2, heads: 4, kv_heads: 2, max_positions: 1024}}
env: {{name: paced, settings: {{turns: 6}}}}
rollout:
  prompts_per_step: {}
  group_size: {}
  workers: {}
  max_sequences: {}
  max_context_tokens: 1024
  threads: 1
sft:
  demonstrations: 500
  epochs: 1
  batch_tokens: 2048
  optim: {{lr: 8.0e-3, warmup_updates: 5}}
train: {{microbatch_tokens: 4096, threads: 1}}
algo: {{name: grpo}}
optim: {{lr: {}, warmup_updates: 2}}
scheduler: {{store_segment_bytes: 1099511627776}}
eval: {{prompts: 0}}
checkpoint: {{interval_steps: 1000000}}
)",
                     kPacedPrompts, kPacedGroup, kPacedWorkers,
                     config.room * kPacedPrompts * kPacedGroup / kPacedWorkers,
                     config.learning_rate);
}

}  // namespace tailrace
