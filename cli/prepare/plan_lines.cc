// The lines of format_plan().
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/pools.h"
#include "cli/inputs/agents.h"
#include "cli/inputs/length.h"
#include "cli/inputs/planned_model.h"
#include "cli/inputs/programs.h"
#include "cli/inputs/rewards.h"
#include "cli/prepare/cluster_plan.h"
#include "cli/prepare/plan.h"
#include "cli/prepare/rates.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/wire/tcp_address.h"
#include "trainer/teacher_file.h"

namespace tailrace {
namespace {

std::vector<std::string_view> lora_target_names(const Lora& lora) {
  std::vector<std::string_view> names;
  for (const LoraTarget target : lora.targets) names.push_back(name_of(target));
  return names;
}

std::string describe_batch(const RowStage& stage) {
  if (const auto* sft = std::get_if<SftOptions>(&stage.work))
    return fmt::format("{} tokens", sft->batch_tokens);
  if (const auto* preference = std::get_if<PreferenceOptions>(&stage.work))
    return fmt::format("{}, loss {}, beta {:g}", counted(preference->batch_rows, "row"),
                       name_of(preference->loss.kind), preference->loss.beta);
  if (const auto* distill = std::get_if<DistillStageOptions>(&stage.work))
    return fmt::format("{} tokens, loss {} to {}", distill->batch_tokens,
                       name_of(distill->loss.kind), distill->policy);
  return counted(std::get<RewardModelOptions>(stage.work).batch_rows, "pair");
}

std::string format_stage(const StagePlan& plan, const RunStage& stage, int64_t max_tokens) {
  const StageFile& data = plan.files.data;
  const RowOptions& options = stage.rows();
  const std::string rows =
      plan.demonstrations == 0
          ? fmt::format("{}, {}", counted(data.rows, "row"), counted(data.tokens, "token"))
          : fmt::format("{}, at most {} tokens each", counted(plan.demonstrations, "demonstration"),
                        max_tokens);
  const std::string updates =
      plan.updates > 0 ? fmt::format(" = about {}", counted(plan.updates, "update")) : "";
  const std::string passes =
      options.updates > 0 ? "" : fmt::format(" x {}", counted(options.epochs, "epoch"));
  std::string text =
      fmt::format("{}{}{} of {}, lr {}", rows, passes, updates.empty() ? ", updates" : updates,
                  describe_batch(stage), describe_rate(options.optim, plan.updates));
  if (data.dropped > 0) text += fmt::format("; {} dropped", counted(data.dropped, "row"));
  if (data.cut > 0) text += fmt::format("; {} cut", counted(data.cut, "row"));
  if (!data.too_long.empty()) text += fmt::format(" (too long: {})", list_lines(data.too_long));
  const StageFile& held_out = plan.files.eval_data;
  if (held_out.rows > 0) text += fmt::format("; {} held out", counted(held_out.rows, "row"));
  if (const auto* distill = std::get_if<DistillStageOptions>(&stage.work)) {
    const TeacherFileHead head = {.top_k =
                                      needs_support(distill->loss.kind) ? distill->loss.top_k : 0};
    text += fmt::format("; at most {} of scores on the disk",
                        format_bytes((data.tokens + held_out.tokens) * head.bytes_per_target()));
  }
  if (data.nulls + held_out.nulls > 0) text += "; " + nulls_note(data.nulls + held_out.nulls);
  return text;
}

// What a line of the plan calls it.
std::string_view label_of(const RunStage& stage, bool steps) {
  if (std::holds_alternative<SftOptions>(stage.work)) return steps ? "warm-up" : "supervised";
  if (std::holds_alternative<DistillStageOptions>(stage.work)) return "distill";
  return std::holds_alternative<PreferenceOptions>(stage.work) ? "preference" : "rewards";
}

// "grid: 3 of the 4 prompts of a step, frozen_grid, 2 epochs of a.jsonl".
std::string describe_dataset(const RunDataset& dataset, int64_t prompts_per_step) {
  const std::string share = dataset.prompts == 0
                                ? "evaluated only"
                                : fmt::format("{} of the {} of a step", dataset.prompts,
                                              counted(prompts_per_step, "prompt"));
  std::string text = fmt::format("{}: {}, {}", dataset.name, share, dataset.env);
  if (dataset.prompts > 0 && !dataset.dataset.empty())
    text += dataset.epochs > 0
                ? fmt::format(", {} of {}", counted(dataset.epochs, "epoch"), dataset.dataset)
                : fmt::format(", {}", dataset.dataset);
  return text;
}

// Libraries of somebody else that play, and what keeps them from the rest.
std::vector<std::string> describe_libraries(const ResolvedRun& run) {
  const RunOptions& o = run.options;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& file, const std::string& what, Isolation isolation) {
    if (file.empty()) return;
    lines.push_back(fmt::format(
        "{} of {}, {}", what, std::filesystem::path(file).filename().string(),
        isolation == Isolation::kProcess
            ? "in processes of their own: a crash, a hang and memory end there; files and network "
              "are open to them"
            : "in the workers: what crashes there ends its worker"));
  };
  for (const RunDataset& dataset : run.datasets) {
    add(dataset.plugin, "environments " + dataset.env, dataset.isolation);
    if (!dataset.command.empty())
      lines.push_back(fmt::format("environments {} of '{}', {}", dataset.env,
                                  shown(start_of(dataset)), place_of_program(dataset.isolation)));
  }
  for (const std::string& agent : describe_agents(run.datasets)) lines.push_back(agent);
  add(o.reward.plugin, "rewards",
      o.reward.isolation == Isolation::kNone ? Isolation::kNone : Isolation::kProcess);
  for (const std::string& program : describe_rewards(run)) lines.push_back(program);
  return lines;
}

}  // namespace

std::string format_plan(const Plan& plan, const ResolvedRun& run,
                        const std::vector<std::string>& algorithm) {
  const RunOptions& o = run.options;
  std::string out;
  auto line = [&](std::string_view label, const std::string& text) {
    out += fmt::format("{:<10} {}\n", label, text);
  };
  const bool steps = !run.supervised_only;
  const std::string active =
      plan.active_parameters < plan.parameters
          ? fmt::format(", of which a token goes through {}", plan.active_parameters)
          : "";
  line("policy", fmt::format("{} parameters{}, {}", plan.parameters, active,
                             o.model.creates() ? "from random weights"
                                               : fmt::format("from {}", o.model.path)));
  line("device", describe(plan.devices, run));
  if (plan.trained_parameters < plan.parameters) {
    const Lora lora = lora_of(o);
    line("adapter", fmt::format("{} parameters are trained: rank {}, alpha {}, beside {}",
                                plan.trained_parameters, lora.rank, lora.alpha,
                                join_texts(lora_target_names(lora), ", ")));
  }
  for (size_t i = 0; i < plan.stages.size(); ++i)
    line(label_of(run.stages[i], steps),
         format_stage(plan.stages[i], run.stages[i], o.rollout.engine.max_context_tokens));
  if (steps) {
    line("step",
         fmt::format("{} prompts x {} samples = {} samples, at most {} tokens each, {} together",
                     o.step.prompts_per_step, o.step.group_size, plan.samples_per_step,
                     o.rollout.engine.max_context_tokens, plan.max_tokens_per_step));
    line("", fmt::format("{} of {} samples x {} = {}, lr {}",
                         counted(o.train.minibatches_per_step, "minibatch", "minibatches"),
                         plan.samples_per_minibatch, counted(o.train.ppo_epochs, "epoch"),
                         counted(plan.updates_per_step, "update"),
                         describe_rate(o.optim, policy_updates(o, plan))));
    for (size_t i = 0; i < algorithm.size(); ++i) line(i == 0 ? "algorithm" : "", algorithm[i]);
  }
  for (size_t i = 0; run.datasets.size() > 1 && i < run.datasets.size(); ++i)
    line(i == 0 ? "datasets" : "", describe_dataset(run.datasets[i], o.step.prompts_per_step));
  for (size_t i = 0; i < plan.prompt_fits.size(); ++i)
    line(i == 0 ? "prompts" : "", describe(plan.prompt_fits[i]));
  const std::vector<std::string> libraries = describe_libraries(run);
  for (size_t i = 0; i < libraries.size(); ++i) line(i == 0 ? "libraries" : "", libraries[i]);
  std::string pools = "pools";
  for (const PoolSection& pool : run.pools) {
    if (pool.name.empty()) break;
    std::vector<std::string> datasets = datasets_in(run.datasets, pool.name);
    if (evaluates_all(o, pool.name)) datasets.push_back("held-out prompts");
    line(pools, fmt::format("{}: {} x {}, {}{}", pool.name, counted(pool.workers, "worker"),
                            counted(pool.max_sequences, "slot"),
                            datasets.empty() ? "for no dataset"
                                             : fmt::format("for {}", join_texts(datasets, ", ")),
                            pool.cluster.empty() ? "" : ", in cluster " + pool.cluster));
    pools.clear();
  }
  if (const auto address = parse_tcp_address(o.run.listen))
    line("listen", fmt::format("{}, where workers of other hosts join{}", address->text(),
                               address->is_any() ? "; HOST: this machine, as they reach it" : ""));
  for (const ClusterSection& cluster : o.clusters) {
    std::string_view label = "cluster";
    for (const std::string& text : describe_cluster(o, cluster, plan.version_bytes)) {
      line(label, text);
      label = "";
    }
  }
  std::string mode(name_of(o.scheduler.mode.name));
  std::string heading = "mode";
  if (steps)
    for (const std::string& sentence :
         scheduler::describe(run.mode, o.step.prompts_per_step, o.step.group_size)) {
      line(heading, mode.empty() ? sentence : fmt::format("{}: {}", mode, sentence));
      heading.clear(), mode.clear();
    }
  if (!steps)
    line("run", "no step of reinforcement learning: it ends with the checkpoint of these weights");
  else if (o.run.steps > 0)
    line("run", fmt::format("{} = {} samples, {}", counted(plan.steps, "step"),
                            plan.steps * plan.samples_per_step,
                            counted(plan.steps * plan.updates_per_step, "update")));
  else
    line("run", fmt::format("{} = at most {}, {}", epochs_text(run), counted(plan.steps, "step"),
                            counted(plan.steps * plan.updates_per_step, "update")));
  if (o.eval.prompts > 0)
    line("eval", fmt::format("{}{} {}before the first and after the last step",
                             counted(o.eval.prompts * o.eval.group_size, "held-out episode"),
                             run.datasets.size() > 1 ? " of each dataset" : "",
                             o.eval.interval_steps > 0
                                 ? fmt::format("every {}, ", counted(o.eval.interval_steps, "step"))
                                 : ""));
  std::string_view disk = "disk";
  for (const std::string& text : describe(plan.disk, o)) {
    line(disk, text);
    disk = "";
  }
  if (plan.devices.card.empty()) line("threads", describe(plan.threads));  // of this machine
  auto memory = [&](std::string_view label, const std::vector<MemoryItem>& items) {
    for (const MemoryItem& item : items) {
      line(label, fmt::format("{:>10}  {}", format_bytes(item.bytes), item.name));
      label = "";
    }
  };
  memory("trainer", plan.trainer);
  memory("on its GPU", plan.devices.trainer_memory);
  memory(plan.rollout_workers > 0 ? "rollout" : "in cluster", plan.rollout_worker);
  memory("on its GPU", plan.devices.rollout_worker);
  memory("on the GPU", plan.devices.in_turn);
  memory("both", plan.in_turn);
  memory("others", plan.others);
  line("memory", fmt::format("{} for {}{} and the others", format_bytes(plan.total_bytes()),
                             plan.trainers == 1 ? "the trainer" : counted(plan.trainers, "trainer"),
                             plan.rollout_workers == 0
                                 ? ""
                                 : ", " + counted(plan.rollout_workers, "rollout worker")));
  if (const std::string gpu = describe_memory(plan.devices, plan.trainers, plan.rollout_workers);
      !gpu.empty())
    line("", gpu);
  for (const std::string& warning : plan.warnings) line("warning", warning);
  return out;
}

}  // namespace tailrace
