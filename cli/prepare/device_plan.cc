#include "cli/prepare/device_plan.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/device_choice.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/model/compute.h"

namespace tailrace {
namespace {

bool is_cpu(Device device) { return device.kind == DeviceKind::kCpu; }

// Bytes that rounding up takes of the memory of a turn, of all that is cut from it.
constexpr int64_t kTurnSlack = 64 << 10;

// The one that any of them computes on.
Device gpu_of(const DevicePlan& plan) { return is_cpu(plan.rollout) ? plan.trainer : plan.rollout; }

// "the trainer, 2 rollout workers": those that compute there.
std::string who_computes(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers) {
  std::string who;
  if (!plan.trainer_memory.empty())
    who = trainers == 1 ? "the trainer" : counted(trainers, "trainer");
  if (!plan.rollout_worker.empty())
    who += (who.empty() ? "" : ", ") + counted(rollout_workers, "rollout worker");
  return who;
}

}  // namespace

DevicePlan plan_devices(const PlacedRun& placed) {
  const RunOptions& o = placed.run.options;
  DevicePlan plan;
  plan.samples_here = placed.run.rollout_workers > 0;
  plan.dtype = placed.compute.weights == Dtype::kBF16 ? "bf16" : "f32";
  plan.trainer = placed.trainer;
  if (plan.samples_here) plan.rollout = placed.rollout.device;
  plan.why_cpu = placed.rollout.why_cpu;
  if (is_cpu(plan.trainer) && !is_cpu(placed.rollout.device))
    plan.why_trainer_cpu = placed.why_trainer_cpu;
  if (o.model.device == DeviceChoice::kCuda && !plan.samples_here && is_cpu(plan.trainer))
    throw UserError::at("model.device", "is cuda, but {}.\n       Try model.device=cpu.",
                        plan.why_trainer_cpu);
  if (o.run.colocate && plan.trainer != plan.rollout)
    throw UserError::at("run.colocate",
                        "is true, but the trainer would be on {} and the rollout worker on {}: "
                        "{}.\n       Try model.device=cpu, or run.colocate=false.",
                        describe(plan.trainer), describe(plan.rollout),
                        plan.why_cpu.empty() ? plan.why_trainer_cpu : plan.why_cpu);
  return plan;
}

std::vector<MemoryItem> share_turns(std::vector<MemoryItem>& trainer,
                                    std::vector<MemoryItem>& rollout_worker) {
  // Takes the items of a turn out of a list; the others stay.
  const auto take = [](std::vector<MemoryItem>& items) {
    std::vector<MemoryItem> taken;
    std::ranges::copy_if(items, std::back_inserter(taken), &MemoryItem::of_turn);
    std::erase_if(items, [](const MemoryItem& item) { return item.of_turn; });
    return total_bytes(taken);
  };
  // The two have the same memory in turn, so that the larger one counts.
  const int64_t trains = take(trainer), samples = take(rollout_worker);
  return {{fmt::format("in turn: {} to train, {} to sample", format_bytes(trains),
                       format_bytes(samples)),
           std::max(trains, samples) + kTurnSlack}};
}

std::string describe(const DevicePlan& plan, const ResolvedRun& run) {
  if (!plan.card.empty()) return fmt::format("{}, in {}", plan.card, plan.dtype);
  const bool samples_elsewhere =
      !plan.samples_here && !run.supervised_only && run.options.model.device != DeviceChoice::kCpu;
  if (samples_elsewhere)
    return fmt::format("{} for the trainer; of rollout workers each takes what its machine has",
                       describe(plan.trainer));
  if (is_cpu(plan.rollout) && is_cpu(plan.trainer))
    return plan.why_cpu.empty() ? "the CPU" : "the CPU: " + plan.why_cpu;
  if (is_cpu(plan.trainer))
    return fmt::format("{} for rollout workers, in {}; the CPU for the trainer: {}",
                       describe(plan.rollout), plan.dtype, plan.why_trainer_cpu);
  return fmt::format("{}, in {}", describe(plan.trainer), plan.dtype);
}

std::string describe_memory(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers) {
  const std::string who = who_computes(plan, trainers, rollout_workers);
  if (who.empty() || !plan.card.empty()) return "";
  const int64_t bytes = trainers * total_bytes(plan.trainer_memory) +
                        rollout_workers * total_bytes(plan.rollout_worker) +
                        total_bytes(plan.in_turn);
  const int64_t has = memory_of(gpu_of(plan));
  return fmt::format("{} of {}{} for {}", format_bytes(bytes),
                     has > 0 ? fmt::format("the {} of ", format_bytes(has)) : "",
                     describe(gpu_of(plan)), who);
}

std::string device_shortage(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers) {
  const int64_t has = memory_of(gpu_of(plan));
  if (has == 0) return "";
  // In double: neither number is bounded by the other.
  const auto all = [](int64_t count, const std::vector<MemoryItem>& items) {
    return static_cast<double>(count) * static_cast<double>(certain_bytes(items));
  };
  const double bytes = all(trainers, plan.trainer_memory) +
                       all(rollout_workers, plan.rollout_worker) + all(1, plan.in_turn);
  if (bytes <= static_cast<double>(has)) return "";
  return fmt::format(
      "{} need {:.1f} GiB of the {} of {}. Make rollout.workers, rollout.kv_cache_mb, "
      "rollout.max_batch_tokens, train.microbatch_tokens or the model smaller ('--dry-run' shows "
      "what each takes).",
      who_computes(plan, trainers, rollout_workers), bytes / 1024 / 1024 / 1024, format_bytes(has),
      describe(gpu_of(plan)));
}

void check_device_size(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers) {
  const std::string shortage = device_shortage(plan, trainers, rollout_workers);
  if (!shortage.empty()) throw UserError("{}", shortage);
}

}  // namespace tailrace
