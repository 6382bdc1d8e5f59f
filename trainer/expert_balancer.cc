#include "trainer/expert_balancer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/base/check.h"

namespace tailrace {

ExpertBalancer::Counts::Counts(Workspace& memory, const ModelConfig& config)
    : choices(memory.take<int64_t>(config.num_sparse_layers() * config.num_experts)),
      losses(memory.take<double>(config.num_sparse_layers() * config.num_experts)) {}

size_t ExpertBalancer::Counts::bytes(const ModelConfig& config) {
  Workspace memory = Workspace::measuring();
  Counts(memory, config);
  return memory.peak();
}

ExpertBalancer::ExpertBalancer(const ModelConfig& config, double coef, double bias_rate,
                               const Stream& stream)
    : config_(config),
      coef_(coef < 0 ? config.balance_coef : coef),
      bias_rate_(bias_rate),
      update_(config),
      step_(config),
      stream_(stream) {
  TR_CHECK(bias_rate == 0 || config.choice_bias, "no bias to balance experts by");
  const size_t size = Counts::bytes(config);
  if (stream.device.kind == DeviceKind::kCpu || size == 0) return;
  device_ = Buffer(size, stream.device);
  // Zeros to send, a place for each pending update, and one for settle_update().
  host_ = Buffer::pinned((kPending + 2) * size, stream.device);
  std::ranges::fill(host_.as<std::byte>().first(size), std::byte{0});
  Workspace memory(device_);
  on_device_ = Counts(memory, config);
}

int64_t ExpertBalancer::bytes(const ModelConfig& config) {
  return static_cast<int64_t>((kPending + 3) * Counts::bytes(config));
}

BalancePass ExpertBalancer::begin(int64_t tokens) {
  update_.clear();
  is_counting_ = counts_on_device();
  if (is_counting_) copy(stream_, device_.bytes(), host_.bytes().part(0, device_.size()));
  // A mean over the tokens of the update: the passes of its micro-batches add up to the
  // coefficient.
  return {.weight = config_.num_experts == 0 ? 0 : coef_ / static_cast<double>(tokens),
          .loads = &update_,
          .device_choices = on_device_.choices,
          .device_losses = on_device_.losses};
}

void ExpertBalancer::fetch(size_t place) {
  const size_t size = device_.size();
  copy(stream_, host_.bytes().part((place + 1) * size, size), device_.bytes());
  is_counting_ = false;
}

ExpertBalancer::Counts ExpertBalancer::arrived(size_t place) {
  const size_t size = device_.size();
  Workspace memory(host_.bytes().part((place + 1) * size, size));
  return {memory, config_};
}

namespace {

void add_counts(ExpertLoads& loads, std::span<const int64_t> choices,
                std::span<const double> losses) {
  for (size_t i = 0; i < choices.size(); ++i) {
    loads.choices[i] += choices[i];
    loads.losses[i] += losses[i];
  }
}

}  // namespace

void ExpertBalancer::settle_update() {
  if (!is_counting_) return;
  fetch(kPending);  // a place of its own
  wait(stream_);
  const Counts counts = arrived(kPending);
  add_counts(update_, counts.choices, counts.losses);
}

void ExpertBalancer::settle_step() {
  if (pending_ == 0) return;
  wait(stream_);
  for (size_t i = 0; i < pending_; ++i) {
    const Counts counts = arrived(i);
    add_counts(step_, counts.choices, counts.losses);
  }
  pending_ = 0;
}

// Whole numbers, but for the terms of the loss.
void ExpertBalancer::gather(Collective* ranks) {
  if (ranks == nullptr || update_.num_experts == 0) return;
  settle_update();
  const std::array own = {update_.tokens, update_.given, update_.moved};
  const auto counts = ranks->gather(std::as_bytes(std::span(own)));
  const auto choices = ranks->gather(std::as_bytes(std::span(update_.choices)));
  const auto losses = ranks->gather(std::as_bytes(std::span(update_.losses)));
  const auto read = [](const std::vector<std::byte>& from, auto& to) {
    TR_CHECK(from.size() == std::as_bytes(std::span(to)).size());
    std::memcpy(to.data(), from.data(), from.size());
  };
  update_.clear();
  ExpertLoads part(config_);
  for (size_t r = 0; r < counts.size(); ++r) {
    std::array<int64_t, 3> count{};
    read(counts[r], count);
    part.tokens = count[0];
    part.given = count[1];
    part.moved = count[2];
    read(choices[r], part.choices);
    read(losses[r], part.losses);
    update_.add(part);
  }
}

void ExpertBalancer::move_to(ExpertLoads& loads) {
  settle_update();
  loads.add(update_);
  update_.clear();
}

void ExpertBalancer::take_back(const ExpertLoads& loads) {
  is_counting_ = false;
  update_.add(loads);
}

void ExpertBalancer::move_bias(Parameters& parameters) {
  settle_update();
  const auto rate = static_cast<float>(bias_rate_);
  int64_t sparse_layer = 0;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.is_sparse(layer)) continue;
    const std::span<const int64_t> choices = update_.choices_of(sparse_layer++);
    const std::span<float> bias = layer_tensors(config_, parameters, layer).choice_bias;
    const int64_t all = std::accumulate(choices.begin(), choices.end(), int64_t{0});
    for (size_t e = 0; e < bias.size(); ++e) {
      // In whole numbers: a choice that is the mean moves nothing.
      const int64_t above = choices[e] * config_.num_experts - all;
      bias[e] += above < 0 ? rate : above > 0 ? -rate : 0;
    }
  }
}

void ExpertBalancer::end_update() {
  if (is_counting_) {
    if (pending_ == kPending) settle_step();
    fetch(pending_++);
  }
  step_.add(update_);
  update_.clear();
}

void ExpertBalancer::forget() {
  update_.clear();
  step_.clear();
  is_counting_ = false;
  pending_ = 0;
}

MetricList ExpertBalancer::take_metrics(const Parameters& parameters) {
  if (config_.num_experts == 0 || step_.tokens == 0) return {};
  settle_step();
  const ExpertLoads::Peak peak = step_.peak();
  MetricList metrics = {{"experts/load_max", peak.mean},
                        {"experts/load_max_worst", peak.worst},
                        {"experts/idle_frac", step_.idle_share()},
                        {"experts/balance_loss", step_.balance_loss()}};
  if (step_.given > 0)
    metrics.emplace_back("experts/route_mismatch_frac",
                         static_cast<double>(step_.moved) / static_cast<double>(step_.given));
  step_.clear();
  if (!config_.choice_bias) return metrics;
  float largest = 0;
  for (const ParameterInfo& info : parameters.layout().entries()) {
    if (info.kind != ParameterKind::kChoice) continue;
    for (const float bias : parameters.vector(info.name))
      largest = std::max(largest, std::abs(bias));
  }
  metrics.emplace_back("experts/bias_max", largest);
  return metrics;
}

}  // namespace tailrace
