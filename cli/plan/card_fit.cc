#include "cli/plan/card_fit.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/device_choice.h"
#include "cli/config/hardware_file.h"
#include "cli/inputs/threads.h"
#include "cli/prepare/placed_run.h"
#include "cli/prepare/worker_configs.h"
#include "cli/view/wrapped.h"
#include "core/base/join_texts.h"
#include "core/base/machine.h"
#include "core/model/compute.h"
#include "core/model/kv_cache.h"
#include "kernels/base/backend.h"
#include "rollout/engine/engine.h"

namespace tailrace {
namespace {

constexpr double kBytesOfGiB = 1024.0 * 1024 * 1024;
constexpr int64_t kBytesOfMib = 1 << 20;

int64_t bytes_of_card(const HardwareSection& card) {
  return card.memory_gib == 0 ? std::numeric_limits<int64_t>::max()
                              : static_cast<int64_t>(card.memory_gib * kBytesOfGiB) * card.devices;
}

// Where rollout workers compute; of several kinds of cards the one with the least memory.
HardwareSection worker_card(const SimulateSection& section) {
  HardwareSection least = hardware_section(section, section.rollout_hardware);
  for (const SimulatedPoolSection& pool : section.pools) {
    if (pool.hardware.empty()) continue;
    const HardwareSection card = hardware_section(section, pool.hardware);
    if (bytes_of_card(card) < bytes_of_card(least)) least = card;
  }
  return least;
}

// As a launch on the CPU would have it: no device of this machine is asked for.
PlacedRun without_device(const ResolvedRun& run, const ModelConfig& config) {
  RunOptions sized = with_context(run.options, config);
  sized.model.device = DeviceChoice::kCpu;
  sized.run.colocate = false;
  return place(changed(run, std::move(sized)), config);
}

PoolSection largest_pool(const ResolvedRun& run) {
  return std::ranges::max(run.pools, {}, &PoolSection::max_sequences);
}

// In a build that knows no GPU, all of it is as on the CPU.
PlacedMemory on_card(PlacedMemory memory) {
  if (card_device().kind != DeviceKind::kCpu) return memory;
  return {.host = {}, .device = std::move(memory.host)};
}

PlacedMemory trainer_on_card(const ResolvedRun& run, const ModelConfig& config) {
  PlacedRun placed = without_device(run, config);
  placed.trainer = card_device();
  return on_card(trainer_memory(trainer_config(placed, {})));
}

PlacedMemory worker_on_card(PlacedRun placed) {
  placed.rollout.device = card_device();
  return on_card(rollout_memory(rollout_config(placed, largest_pool(placed.run), {})));
}

// The items of a process on the CPU stand first; estimates are behind them.
void replace_first(std::vector<MemoryItem>& items, size_t count, std::vector<MemoryItem> others) {
  items.erase(items.begin(), items.begin() + static_cast<int64_t>(std::min(count, items.size())));
  items.insert(items.begin(), others.begin(), others.end());
}

// A card that comes along and holds so much, the smallest one.
std::optional<std::string> card_with(int64_t bytes) {
  std::optional<HardwareSection> best;
  for (const std::string& name : hardware_names()) {
    const HardwareSection card = load_hardware(name, {}).section.hardware.front();
    if (bytes_of_card(card) < bytes || (best && best->memory_gib <= card.memory_gib)) continue;
    best = card;
  }
  if (!best) return std::nullopt;
  return fmt::format("{} ({:.1f} GiB)", best->name, best->memory_gib);
}

// "4.6B" parameters of a policy.
std::string size_text(double parameters) {
  if (parameters >= 1e9) return fmt::format("{:.1f}B", parameters / 1e9);
  return fmt::format("{:.0f}M", parameters / 1e6);
}

// Keys that make the trainer smaller, each by itself and all together.
void try_trainer_keys(const ResolvedRun& run, const ModelConfig& config, CardFit& fit) {
  const RunOptions& options = run.options;
  const RunOptions sized = with_context(options, config);
  const int64_t context = sized.rollout.engine.max_context_tokens;
  const bool shortens = context < options.train.microbatch_tokens;
  const auto told = [&](const std::string& keys, const ResolvedRun& other) {
    const int64_t needs = total_bytes(trainer_on_card(other, config).device);
    if (needs > fit.trainer_has) return false;
    fit.would.push_back(fmt::format("{} ({})", keys, format_bytes(needs)));
    return true;
  };
  ResolvedRun shorter = run, recomputed = run;
  shorter.options.train.microbatch_tokens = context;
  recomputed.options.train.recompute = true;
  const std::string of_batch = fmt::format("train.microbatch_tokens={}", context),
                    of_pass = "train.recompute=true";
  bool one = shortens && told(of_batch, shorter);
  if (!options.train.recompute && told(of_pass, recomputed)) one = true;
  if (one || !shortens || options.train.recompute) return;
  shorter.options.train.recompute = true;
  told(of_batch + " " + of_pass, shorter);
}

// Where no card holds it as it is, and no key makes it small enough for this one.
void try_smallest_trainer(const ResolvedRun& run, const ModelConfig& config, CardFit& fit) {
  RunOptions smallest = with_context(run.options, config);
  smallest.train.microbatch_tokens = smallest.rollout.engine.max_context_tokens;
  smallest.train.recompute = true;
  const int64_t needs = total_bytes(trainer_on_card(changed(run, smallest), config).device);
  if (const auto card = card_with(std::max(needs, fit.rollout_needs)))
    fit.would.push_back(fmt::format("{} with train.microbatch_tokens={} train.recompute=true ({})",
                                    *card, smallest.train.microbatch_tokens, format_bytes(needs)));
}

}  // namespace

Device card_device() {
  return {backend_facts(DeviceKind::kCuda).built ? DeviceKind::kCuda : DeviceKind::kCpu, 0};
}

Placement cache_placement(const RunOptions& options, const ModelConfig& config) {
  const Elements elements =
      elements_of(options.model.compute, options.model.kv_cache_dtype, config);
  check_gpu_elements(elements);
  return Placement::on({DeviceKind::kCuda, 0}, elements);
}

RunOptions with_context(const RunOptions& options, const ModelConfig& config) {
  RunOptions sized = options;
  RolloutOptions& rollout = sized.rollout;
  int64_t& context = rollout.engine.max_context_tokens;
  if (context > 0) return sized;
  context = rollout.max_prompt_tokens > 0 && rollout.max_response_tokens > 0
                ? rollout.max_prompt_tokens + rollout.max_response_tokens
                : std::min(config.max_positions, options.train.microbatch_tokens);
  return sized;
}

Plan plan_on_cards(const ResolvedRun& run, const ModelConfig& config) {
  const PlacedRun sized = without_device(run, config);
  Plan plan = make_plan(sized, /*available_bytes=*/0);
  PlacedMemory trainer = trainer_on_card(run, config), worker = worker_on_card(sized);
  replace_first(plan.trainer, trainer_memory(trainer_config(sized, {})).host.size(),
                std::move(trainer.host));
  const auto on_cpu = rollout_memory(rollout_config(sized, largest_pool(sized.run), {}));
  replace_first(plan.rollout_worker, on_cpu.host.size(), std::move(worker.host));
  DevicePlan& devices = plan.devices;
  const SimulateSection& section = run.options.simulate;
  const std::string name = worker_card(section).name,
                    of_trainer = hardware_section(section, section.trainer.hardware).name;
  devices.card = name == of_trainer
                     ? name
                     : fmt::format("{} for rollout workers, {} for the trainer", name, of_trainer);
  devices.trainer_memory = std::move(trainer.device);
  devices.rollout_worker = std::move(worker.device);
  // Threads are of this machine.
  const std::string shortage = thread_shortage(plan.threads, sized.run.options);
  std::erase_if(plan.warnings, [&](const std::string& text) { return text == shortage; });
  return plan;
}

CardFit fit_on_cards(const ResolvedRun& run, const ModelConfig& config, const Plan& plan) {
  const RunOptions& options = run.options;
  const SimulateSection& section = options.simulate;
  const HardwareSection trainer = hardware_section(section, section.trainer.hardware),
                        worker = worker_card(section);
  PlacedRun sized = without_device(run, config);
  const EngineOptions engine = sized.run.options.rollout.engine;
  const Placement placement = cache_placement(options, config);
  CardFit fit{.trainer_card = trainer.name,
              .rollout_card = worker.name,
              .trainer_has = bytes_of_card(trainer),
              .rollout_has = bytes_of_card(worker),
              .trainer_needs = total_bytes(plan.devices.trainer_memory),
              .rollout_needs = total_bytes(plan.devices.rollout_worker)};
  DevicePlan turns = plan.devices;
  sized.run.options.run.colocate = true;
  turns.rollout_worker = worker_on_card(std::move(sized)).device;
  turns.in_turn = share_turns(turns.trainer_memory, turns.rollout_worker);
  fit.in_turn_needs = total_bytes(turns.trainer_memory) + total_bytes(turns.rollout_worker) +
                      total_bytes(turns.in_turn);
  const int64_t blocks = num_kv_blocks(config, engine, placement),
                kv_bytes =
                    blocks * KvCache::bytes_per_block(config, static_cast<int>(engine.block_tokens),
                                                      false, placement);
  fit.kv_tokens = blocks * engine.block_tokens;
  fit.kv_mb = kv_bytes / kBytesOfMib;
  // A little is left over.
  const double room = 0.95 * static_cast<double>(fit.rollout_has - fit.rollout_needs + kv_bytes);
  fit.kv_room_mb = worker.memory_gib > 0
                       ? std::max<int64_t>(0, static_cast<int64_t>(room) / kBytesOfMib / 256 * 256)
                       : 0;
  fit.takes_turns = options.run.colocate;
  fit.is_of_gpu = card_device().kind != DeviceKind::kCpu;
  if (fit.fits()) return fit;
  const auto policy_that_fits = [&](int64_t needs, int64_t has) {
    fit.would.push_back(
        fmt::format("a policy of about {} parameters",
                    size_text(static_cast<double>(plan.parameters) * static_cast<double>(has) /
                              static_cast<double>(needs))));
  };
  const int64_t most =
      fit.takes_turns ? fit.in_turn_needs : std::max(fit.trainer_needs, fit.rollout_needs);
  if (const auto card = card_with(most)) fit.would.push_back(*card);
  if (fit.takes_turns) {
    if (fit.trainer_fits() && fit.rollout_fits())
      fit.would.emplace_back("a card for each (run.colocate=false)");
    policy_that_fits(fit.in_turn_needs, fit.trainer_has);
  } else if (!fit.trainer_fits()) {
    if (fit.rollout_fits()) try_trainer_keys(run, config, fit);
    if (fit.would.empty()) try_smallest_trainer(run, config, fit);
    policy_that_fits(fit.trainer_needs, fit.trainer_has);
  } else if (fit.kv_room_mb > 0) {
    fit.would.push_back(fmt::format("rollout.kv_cache_mb={}", fit.kv_room_mb));
  } else {
    policy_that_fits(fit.rollout_needs, fit.rollout_has);
  }
  return fit;
}

std::string fit_text(const CardFit& fit) {
  const auto of = [](std::string_view who, int64_t needs, int64_t has, const std::string& card) {
    return has == std::numeric_limits<int64_t>::max()
               ? fmt::format("{} takes {}", who, format_bytes(needs))
               : fmt::format("{} takes {} of the {} of {}", who, format_bytes(needs),
                             format_bytes(has), card);
  };
  const std::string both =
      of("the trainer", fit.trainer_needs, fit.trainer_has, fit.trainer_card) + ", " +
      of("a rollout worker", fit.rollout_needs, fit.rollout_has, fit.rollout_card);
  const bool is_known = fit.is_known();
  const std::string turns =
      fmt::format("; both by turns (run.colocate) take {}{}", format_bytes(fit.in_turn_needs),
                  is_known ? fmt::format(" of the {}", format_bytes(fit.trainer_has)) : "");
  const std::string together = fit.takes_turns            ? turns
                               : !fit.fits() || !is_known ? ""
                               : fit.shares()             ? "; both fit on one"
                               : fit.fits_in_turn()       ? turns
                                                          : "; each on a card of its own";
  std::string text = wrapped(both + together +
                                 (is_known ? ""
                                           : ". Whether that fits is not told: the hardware has no "
                                             "memory_gib"),
                             !is_known    ? "memory     "
                             : fit.fits() ? "fits       "
                                          : "fits not   ");
  if (!fit.is_of_gpu)
    text += wrapped(
        "this build has no CUDA, so that these are sizes of the CPU, where activations and the KV "
        "cache are in float32: on a GPU they are less",
        "           ");
  if (!fit.fits())
    text += wrapped(join_texts(fit.would, "; "), "would fit  ");
  else if (!fit.takes_turns && fit.kv_room_mb > 2 * std::max<int64_t>(1, fit.kv_mb))
    text += wrapped(fmt::format("{} of KV cache (rollout.kv_cache_mb); the card has room for "
                                "rollout.kv_cache_mb={}",
                                counted(fit.kv_tokens, "token"), fit.kv_room_mb),
                    "cache      ");
  return text;
}

std::vector<std::string> gaps_of(const ResolvedRun& run, const ModelConfig* config,
                                 int64_t trainers) {
  const RunOptions& options = run.options;
  const SimulateSection& section = options.simulate;
  const HardwareSection trainer = hardware_section(section, section.trainer.hardware),
                        worker = hardware_section(section, section.rollout_hardware);
  std::vector<std::string> gaps;
  if (const int64_t devices = trainers * trainer.devices; devices > 1)
    gaps.push_back(fmt::format("a policy trains on one device, and this plan has {}", devices));
  if (worker.devices > 1)
    gaps.push_back(
        fmt::format("no model is split over devices, and a rollout worker has {}", worker.devices));
  if (options.lora.trains())
    gaps.emplace_back("an adapter beside its base is computed on the CPU alone");
  if (const std::string why = why_trainer_on_cpu(run); !why.empty()) gaps.push_back(why);
  if (config != nullptr && compute_dtype(options.model.compute, *config) == Dtype::kBF16 &&
      config->head_dim % 8 != 0)
    gaps.push_back(fmt::format(
        "bf16 wants heads of a multiple of 8 dimensions, and those of the model have {}",
        config->head_dim));
  return gaps;
}

std::string gaps_text(const std::vector<std::string>& gaps, const std::string& runnable) {
  if (gaps.empty()) return "";
  const std::string instead =
      runnable.empty() ? "" : fmt::format(". The best that it can run: {}", runnable);
  return wrapped(
      fmt::format("Tailrace cannot run this as it is: {}{}", join_texts(gaps, "; "), instead),
      "today      ");
}

}  // namespace tailrace
