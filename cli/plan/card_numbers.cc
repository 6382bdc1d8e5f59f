#include "cli/plan/card_numbers.h"

#include <algorithm>

#include "cli/plan/card_fit.h"
#include "core/model/compute.h"
#include "core/model/kv_cache.h"
#include "core/model/packed_weights.h"
#include "core/model/parameters.h"
#include "core/weights/manifest.h"
#include "rollout/engine/engine.h"

namespace tailrace {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024, kGb = 1e9;
// Master, gradient and two moments are read, and all but the gradient written.
constexpr double kUpdateBytes = 7 * sizeof(float);
// Of a decode step beside its bytes: the kernels of a layer begin and end. A guess.
constexpr double kLayerSeconds = 15e-6;
// Tensor cores compute in bfloat16; float32 goes another way.
constexpr double kF32Share = 1.0 / 8;
// A disk of a rented machine, about, and what a version takes besides; a checkpoint has moments
// too.
constexpr double kDiskBytes = 1e9, kLeastSeconds = 0.1, kSavedBytes = 3 * sizeof(float);
// Of the memory beside the weights, what a KV cache may have.
constexpr double kCacheShare = 0.9;

// What a token of the policy costs, wherever it is computed.
struct PolicyCosts {
  double version_bytes = 0;               // as it is published
  double weight_bytes = 0, kv_bytes = 0;  // of all weights; of a token's keys and values
  double forward = 0;                     // operations of a token
  double trained = 0;                     // parameters
  double passes = 0;                      // of training, in forward passes
  double share = 1;                       // of the peak in bfloat16
};

PolicyCosts costs_of(const RunOptions& o, const ModelConfig& config, const Placement& placement) {
  const Dtype dtype = compute_dtype(o.model.compute, config);
  const ParameterLayout layout(config);
  PolicyCosts costs;
  costs.weight_bytes = static_cast<double>(PackedWeights::bytes(config, dtype, card_device()));
  costs.version_bytes =
      static_cast<double>(published_bytes(ParameterLayout::trained(config), dtype));
  const auto block = static_cast<int>(o.rollout.engine.block_tokens);
  costs.kv_bytes =
      static_cast<double>(KvCache::bytes_per_block(config, block, false, placement)) / block;
  costs.forward = 2 * static_cast<double>(layout.num_active_parameters());
  costs.trained = static_cast<double>(ParameterLayout::trained(config).num_parameters());
  // Backward is two passes, of frozen weights one.
  costs.passes =
      (config.lora ? 2 : 3) + (o.train.recompute ? 1 : 0) + (o.algo.kl.needs_reference() ? 1 : 0);
  costs.share = dtype == Dtype::kBF16 ? 1 : kF32Share;
  return costs;
}

}  // namespace

ModelConfig usual_policy() {
  ModelConfig config;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128256;
  config.max_positions = 1 << 20;
  config.dtype = Dtype::kBF16;
  return config;
}

void fill_from_cards(RunOptions& options, const ConfigKeys& keys, const ModelConfig& config,
                     bool is_known) {
  SimulateSection& section = options.simulate;
  const RunOptions sized = with_context(options, config);
  const Placement placement = cache_placement(options, config);
  const PolicyCosts costs = costs_of(sized, config, placement);
  const auto gives = [&](const std::string& key) { return keys.given(key); };
  for (HardwareSection& card : section.hardware) {
    if (!card.is_card()) continue;
    const std::string item = "hardware." + card.name + ".";
    const auto devices = static_cast<double>(card.devices);
    const double bandwidth = devices * card.memory_gb_per_s * kGb * card.memory_ratio,
                 operations = devices * card.bf16_tflops * 1e12 * card.compute_ratio * costs.share;
    if (!gives(item + "step_ms"))
      card.step_ms = 1000 * (costs.weight_bytes / bandwidth +
                             kLayerSeconds * static_cast<double>(config.num_layers));
    if (!gives(item + "kv_read_tokens_per_s"))
      card.kv_read_tokens_per_s = bandwidth / costs.kv_bytes;
    if (!gives(item + "prefill_tokens_per_s"))
      card.prefill_tokens_per_s = operations / costs.forward;
    if (!gives(item + "train_tokens_per_s"))
      card.train_tokens_per_s = operations / (costs.forward * costs.passes);
    if (!gives(item + "tokens_per_s")) {
      const auto sequences = static_cast<double>(card.at_sequences);
      const double floor =
          card.step_ms / 1000 / sequences +
          (card.kv_read_tokens_per_s > 0
               ? static_cast<double>(card.at_context_tokens) / card.kv_read_tokens_per_s
               : 0);
      card.tokens_per_s = 1 / (floor + costs.forward / operations);
    }
    if (!gives(item + "kv_tokens") && is_known)
      card.kv_tokens = int64_t{num_kv_blocks(config, sized.rollout.engine, placement)} *
                       sized.rollout.engine.block_tokens;
    else if (!gives(item + "kv_tokens") && card.memory_gib > 0)
      card.kv_tokens = static_cast<int64_t>(std::max(
          1.0,
          kCacheShare * (devices * card.memory_gib * kGiB - costs.weight_bytes) / costs.kv_bytes));
  }
  const HardwareSection trainer = hardware_section(section, section.trainer.hardware),
                        worker = hardware_section(section, section.rollout_hardware);
  if (trainer.is_card() && !gives("trainer.update_seconds"))
    section.trainer.update_seconds = kUpdateBytes * costs.trained /
                                     (static_cast<double>(trainer.devices) *
                                      trainer.memory_gb_per_s * kGb * trainer.memory_ratio);
  if (trainer.is_card()) {
    if (!gives("trainer.publish_seconds"))
      section.trainer.publish_seconds = kLeastSeconds + costs.version_bytes / kDiskBytes;
    if (!gives("trainer.save_seconds"))
      section.trainer.save_seconds =
          kLeastSeconds + (costs.version_bytes + kSavedBytes * costs.trained) / kDiskBytes;
  }
  if (worker.is_card() && !gives("weights.fetch_seconds"))
    section.weights.fetch_seconds = kLeastSeconds + costs.version_bytes / kDiskBytes;
  if (worker.is_card() && worker.link_gb_per_s > 0 && !gives("weights.link_mbit"))
    section.weights.link_mbit = 8000 * worker.link_gb_per_s;
}

}  // namespace tailrace
