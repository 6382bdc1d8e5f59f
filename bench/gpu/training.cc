// Updates of a trainer: forward, loss, backward and AdamW of packed sequences, in bfloat16 with
// float32 master weights.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/geometries.h"
#include "bench/gpu/parts.h"
#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/base/random.h"
#include "core/run/memory_need.h"
#include "trainer/policy_trainer.h"

namespace tailrace::gpu_bench {
namespace {

// Cheap: billions of them are made before anything is measured.
void fill_weights(std::span<float> values) {
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = 0.03f * (static_cast<float>(state >> 8) * 0x1p-23f - 1);
  }
}

double loss_of(const MetricList& metrics) {
  const auto found = std::ranges::find(metrics, "sft/loss", &MetricList::value_type::first);
  return found == metrics.end() ? NAN : found->second;
}

void train(Harness& harness, const std::string& name, const Options& options, Report& report) {
  const int64_t length = std::min(options.sequence, options.tokens);
  const int64_t count = options.tokens / length, tokens = count * length;
  const ModelConfig config = geometry(name, length);
  const TrainOptions train{.microbatch_tokens = tokens};
  const std::string title = fmt::format("{}, {} x {} tokens", name, count, length);
  const int64_t wanted = total_bytes(PolicyTrainer::memory(
      config, train, length, 1, {.compute = Dtype::kBF16, .device = harness.stream().device}));
  if (const int64_t free = free_bytes(harness.stream().device); free >= 0 && wanted > free) {
    fmt::print(stderr, "{}: wants {} of the {} that are free\n", title, format_bytes(wanted),
               format_bytes(free));
    return;
  }
  PolicyTrainer trainer(harness.stream(), config, train, length, Dtype::kBF16);
  fill_weights(trainer.parameters().flat());
  trainer.weights_changed();
  trainer.reset_optimizer({.lr = 1e-4});
  Rng rng(7);
  std::vector<std::vector<TokenId>> rows(static_cast<size_t>(count));
  std::vector<int32_t> targets(static_cast<size_t>(length - 1));
  std::iota(targets.begin(), targets.end(), 1);
  std::vector<PackedSequence> sequences;
  for (std::vector<TokenId>& row : rows) {
    for (int64_t i = 0; i < length; ++i)
      row.push_back(static_cast<TokenId>(rng.below(config.vocab_size)));
    sequences.push_back({.tokens = row, .targets = targets});
  }
  const double first = loss_of(trainer.sft_update(sequences));
  const auto seconds = harness.seconds_of([&] { trainer.sft_update(sequences); });
  const double last = loss_of(trainer.sft_update(sequences));
  require(std::isfinite(first) && last < first, "{}: the loss went from {} to {}", title, first,
          last);
  // Backward has two products for each of forward.
  const auto t = static_cast<double>(tokens);
  const double weights =
      static_cast<double>(config.num_layers) *
          static_cast<double>((config.qkv_size() + config.q_size() + 3 * config.intermediate_size) *
                              config.hidden_size) +
      static_cast<double>(config.num_ids() * config.hidden_size);
  const double attention = 2.0 * t * static_cast<double>(length) *
                           static_cast<double>(config.num_layers * config.q_size());
  const double flops = 3 * (2 * weights * t + attention);
  std::vector<double> rates, work;
  for (const double s : seconds) {
    rates.push_back(t / s);
    work.push_back(1e-12 * flops / s);
  }
  const double limit = harness.product_rate();
  report.add(title, "training", "tokens/s", rates, t * limit / flops);
  report.add(title, "work", "TFLOP/s", work, 1e-12 * limit);
}

}  // namespace

void measure_training(Harness& harness, const Options& options, Report& report) {
  harness.product_rate();  // before weights take the memory
  for (const std::string& name : options.geometries) train(harness, name, options, report);
}

}  // namespace tailrace::gpu_bench
