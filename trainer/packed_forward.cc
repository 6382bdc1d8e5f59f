#include "trainer/packed_forward.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

// One vector of positions. It need not be rollout's: the page layout costs no bits.
constexpr int kBlockTokens = 16;
// Shortest average sequence that a full micro-batch is planned for.
constexpr int64_t kMinMeanTokens = 8;

int blocks_for(int64_t tokens) {
  return static_cast<int>((tokens + kBlockTokens - 1) / kBlockTokens);
}

int64_t buffer_tokens(const PackLimits& limits, int64_t max_sequence_tokens) {
  return std::max(limits.max_tokens, max_sequence_tokens);
}

int max_blocks(const PackLimits& limits) { return 2 * blocks_for(limits.max_tokens); }

int num_blocks(const PackLimits& limits, int64_t max_sequence_tokens) {
  return std::max(max_blocks(limits), blocks_for(max_sequence_tokens));
}

PackLimits limits_for(PackLimits limits, const ModelConfig& config, const Placement& placement) {
  // Experts count tokens by sequence, and a recorded choice is one of a sequence's own.
  limits.shares = limits.shares && config.num_experts == 0 && placement.device == Device{};
  return limits;
}

// The first tokens of the sequence that another one of the pass has, which came before.
SharedPrefixes::Place shared(SharedPrefixes& prefixes, const PackedSequence& sequence) {
  return prefixes.add(sequence.tokens, sequence.targets.front() - 1);
}

// The workspace of the model and of the head: one after the other, so the larger one is enough.
size_t workspace_bytes(const ModelConfig& config, int64_t max_tokens, int64_t max_sequence_tokens,
                       int num_threads, const Placement& placement) {
  return std::max(Model::workspace_bytes(config, max_tokens, static_cast<int>(max_sequence_tokens),
                                         num_threads, placement),
                  linear_logprob_workspace_bytes(max_tokens, config.num_ids(), config.hidden_size,
                                                 placement.device));
}

BatchRoom batch_room(const ModelConfig& config, const PackLimits& limits,
                     int64_t max_sequence_tokens) {
  return {.tokens = buffer_tokens(limits, max_sequence_tokens),
          .sequences = limits.max_sequences,
          .blocks_per_sequence = blocks_for(max_sequence_tokens),
          .choices_per_token = config.expert_shape().per_token(),
          .takes_draws = false,
          .shares = limits.shares,
          .vocab = config.vocab_size,
          .blocks = num_blocks(limits, max_sequence_tokens)};
}

}  // namespace

Tensor head_gradient(const Model& model, Parameters& gradients) {
  if (model.config().lora) return {};
  return gradients.tensor(model.head_name()).slice_rows(0, model.config().num_ids());
}

PackLimits pack_limits(int64_t microbatch_tokens, int64_t max_sequence_tokens, bool shares) {
  const int64_t mean = std::max(kMinMeanTokens, max_sequence_tokens / 1024);
  return {.max_tokens = microbatch_tokens,
          .max_sequences = std::max<int64_t>(1, microbatch_tokens / mean),
          .shares = shares};
}

namespace {

// Rows and blocks of a pass.
struct PassSize {
  int64_t tokens = 0, blocks = 0;

  void add(const PackedSequence& sequence, const PackLimits& limits, SharedPrefixes& prefixes) {
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    const int64_t common = limits.shares ? shared(prefixes, sequence).tokens : 0;
    tokens += length - common;
    blocks += blocks_for(length) - common / kBlockTokens;
  }
};

}  // namespace

int64_t pass_tokens(std::span<const PackedSequence> sequences, const PackLimits& limits) {
  SharedPrefixes prefixes;
  PassSize size;
  for (const PackedSequence& sequence : sequences) size.add(sequence, limits, prefixes);
  return size.tokens;
}

std::vector<std::pair<size_t, size_t>> pack(std::span<const PackedSequence> sequences,
                                            const PackLimits& limits, size_t together) {
  TR_CHECK(sequences.size() % together == 0, "{} sequences, {} together", sequences.size(),
           together);
  std::vector<std::pair<size_t, size_t>> ranges;
  SharedPrefixes prefixes;
  for (size_t begin = 0; begin < sequences.size();) {
    PassSize size;
    size_t end = begin;
    prefixes.clear();
    while (end < sequences.size()) {
      PassSize grown = size;
      for (size_t i = end; i < end + together; ++i) grown.add(sequences[i], limits, prefixes);
      // The head applies one temperature to a whole pass.
      bool fits = grown.tokens <= limits.max_tokens && grown.blocks <= max_blocks(limits) &&
                  static_cast<int64_t>(end + together - begin) <= limits.max_sequences &&
                  sequences[end].inv_temperature == sequences[begin].inv_temperature;
      // The first goes in whatever its length: buffers hold max_sequence_tokens.
      if (end > begin && !fits) break;
      size = grown;
      end += together;
    }
    ranges.emplace_back(begin, end);
    begin = end;
  }
  return ranges;
}

PackedForward::Rows::Rows(const MirrorMemory& memory, const ModelConfig& config, int64_t max_tokens,
                          bool with_backward)
    : hidden(take_tensor(memory.device, memory.placement, max_tokens, config.hidden_size,
                         memory.placement.operands)),
      target_ids(memory, max_tokens),
      logprob(memory, max_tokens),
      lse(memory, max_tokens),
      entropy(memory, max_tokens) {
  if (!with_backward) return;
  dhidden =
      take_tensor(memory.device, memory.placement, max_tokens, config.hidden_size, Dtype::kF32);
  // On the CPU the model reads them where the caller has them.
  if (memory.is_one()) return;
  dlogprob = Mirror<float>(memory, max_tokens);
  dentropy = Mirror<float>(memory, max_tokens);
}

PackedForward::Rows::Bytes PackedForward::Rows::bytes(const ModelConfig& config, int64_t max_tokens,
                                                      bool with_backward,
                                                      const Placement& placement) {
  Workspace device = Workspace::measuring(), host = Workspace::measuring();
  Rows({device, host, placement}, config, max_tokens, with_backward);
  return {device.peak(), host.peak()};
}

PackedForward::PackedForward(const Model& model, const PackLimits& limits,
                             int64_t max_sequence_tokens, ForBackward keeps, int num_threads)
    : model_(model),
      limits_(limits_for(limits, model.config(), model.placement())),
      max_sequence_tokens_(max_sequence_tokens),
      max_tokens_(buffer_tokens(limits, max_sequence_tokens)),
      builder_(batch_room(model.config(), limits_, max_sequence_tokens), model.placement().device),
      kv_(model.config(), num_blocks(limits_, max_sequence_tokens), kBlockTokens,
          /*keeps_choices=*/false, model.placement()) {
  const ModelConfig& config = model.config();
  const bool with_backward = keeps != ForBackward::kNothing;
  const Placement& placement = model.placement();
  TR_CHECK(max_sequence_tokens >= 1 && max_sequence_tokens <= config.max_positions,
           "{} of {} positions", max_sequence_tokens, config.max_positions);
  workspace_ =
      Buffer(workspace_bytes(config, max_tokens_, max_sequence_tokens, num_threads, placement),
             placement.device);
  const auto [on_device, on_host] = Rows::bytes(config, max_tokens_, with_backward, placement);
  device_rows_ = Buffer(on_device, placement.device);
  host_rows_ = Buffer::pinned(on_host, placement.device);
  Workspace device(device_rows_), host(host_rows_);
  rows_ = Rows({device, host, placement}, config, max_tokens_, with_backward);
  if (with_backward)
    activations_ = model.make_activations(max_tokens_, keeps == ForBackward::kInputs);
}

std::vector<MemoryItem> PackedForward::memory(const ModelConfig& config, const PackLimits& asked,
                                              int64_t max_sequence_tokens, ForBackward keeps,
                                              int num_threads, const Placement& placement) {
  const PackLimits limits = limits_for(asked, config, placement);
  const int64_t tokens = buffer_tokens(limits, max_sequence_tokens);
  const bool with_backward = keeps != ForBackward::kNothing;
  const auto [on_device, on_host] = Rows::bytes(config, tokens, with_backward, placement);
  const size_t rows =
      on_device + on_host +
      static_cast<size_t>(BatchBuilder::bytes(batch_room(config, limits, max_sequence_tokens)));
  std::vector<MemoryItem> items = {
      {fmt::format("workspace of {} tokens", tokens),
       static_cast<int64_t>(
           workspace_bytes(config, tokens, max_sequence_tokens, num_threads, placement) + rows)},
      {fmt::format("keys and values of {} tokens", tokens),
       KvCache::bytes(config, num_blocks(limits, max_sequence_tokens), kBlockTokens,
                      /*keeps_choices=*/false, placement)}};
  if (!with_backward) return items;
  const bool recomputes = keeps == ForBackward::kInputs;
  const int64_t logits = keeps_logits(config, tokens, placement, recomputes)
                             ? tokens * config.num_ids() * size_of(Dtype::kF32)
                             : 0;
  items.push_back({fmt::format("activations of {} tokens", tokens),
                   Activations::bytes(config, tokens, placement, recomputes) - logits});
  if (logits > 0) items.push_back({fmt::format("logits of {} tokens", tokens), logits});
  return items;
}

PackedForward::~PackedForward() = default;

void PackedForward::build(std::span<const PackedSequence> sequences) {
  builder_.clear();
  num_targets_ = 0;
  kept_offsets_.clear();
  kept_ids_.clear();
  const bool has_sets = std::ranges::any_of(
      sequences, [](const PackedSequence& sequence) { return !sequence.kept.empty(); });
  if (has_sets) kept_offsets_.push_back(0);
  std::vector<int32_t> logit_offsets;
  const auto table_width = static_cast<size_t>(blocks_for(max_sequence_tokens_));
  tables_.resize(sequences.size() * table_width);
  prefixes_.clear();
  int next_block = 0;
  for (size_t index = 0; index < sequences.size(); ++index) {
    const PackedSequence& sequence = sequences[index];
    auto length = static_cast<int64_t>(sequence.tokens.size());
    TR_CHECK(!sequence.targets.empty() && length <= max_sequence_tokens_,
             "sequence of {} tokens, {} targets", length, sequence.targets.size());
    const SharedPrefixes::Place place =
        limits_.shares ? shared(prefixes_, sequence) : SharedPrefixes::Place{};
    TR_CHECK(builder_.num_tokens() + length - place.tokens <= max_tokens_, "{} tokens and {} more",
             builder_.num_tokens(), length - place.tokens);
    TR_CHECK(sequence.inv_temperature == sequences.front().inv_temperature,
             "two temperatures in one pass");
    const auto table_of = [&](size_t i) {
      return std::span(tables_).subspan(i * table_width, table_width);
    };
    const auto blocks = table_of(index).first(static_cast<size_t>(blocks_for(length)));
    const auto common = static_cast<size_t>(place.tokens / kBlockTokens);
    if (place.parent >= 0)
      std::ranges::copy(table_of(static_cast<size_t>(place.parent)).first(common), blocks.begin());
    // From 0 in every pass: nothing is kept from one to the next but what backward() reads.
    std::iota(blocks.begin() + static_cast<int64_t>(common), blocks.end(), next_block);
    if (const auto rest = static_cast<int32_t>(place.tokens % kBlockTokens); rest > 0)
      builder_.add_copy({.from = table_of(static_cast<size_t>(place.parent))[common],
                         .to = blocks[common],
                         .tokens = rest});
    next_block += static_cast<int>(blocks.size() - common);
    logit_offsets.clear();
    for (int32_t target : sequence.targets) {
      TR_CHECK(target >= 1 && target < length + (last_.head ? 0 : 1), "target {} of {}", target,
               length);
      // The position before a token predicts it.
      logit_offsets.push_back(target - 1 - static_cast<int32_t>(place.tokens));
      rows_.target_ids.host[static_cast<size_t>(num_targets_++)] =
          last_.head ? sequence.tokens[static_cast<size_t>(target)] : 0;
    }
    builder_.add(sequence.tokens.subspan(static_cast<size_t>(place.tokens)),
                 static_cast<int32_t>(place.tokens), blocks, logit_offsets, sequence.choices,
                 place.parent);
    if (!has_sets) continue;
    for (size_t i = 0; i < sequence.targets.size(); ++i) {
      const auto set = sequence.kept.of(i);
      kept_ids_.insert(kept_ids_.end(), set.begin(), set.end());
      kept_offsets_.push_back(std::ssize(kept_ids_));
    }
  }
  TR_CHECK(builder_.num_tokens() <= max_tokens_ && next_block <= kv_.num_blocks(),
           "{} tokens, {} blocks", builder_.num_tokens(), next_block);
  inv_temperature_ = sequences.front().inv_temperature;
}

// Sends the batch of build() to where the model reads it.
void PackedForward::send(const Stream& stream) {
  // The copy alone: the model asks for the batch again, which is then there.
  static_cast<void>(builder_.batch(stream));
  rows_.target_ids.slice(0, num_targets_).send(stream);
  send_kept(stream);
  // build() of the next micro-batch writes the same pinned memory, and waits for this.
  if (!on_cpu()) sent_.set(stream);
}

void PackedForward::send_kept(const Stream& stream) {
  kept_ = {kept_offsets_, kept_ids_};
  if (on_cpu() || kept_.empty()) return;
  const auto take = [&](Workspace& memory) {
    const auto offsets = memory.take<int64_t>(std::ssize(kept_offsets_));
    return std::pair(offsets, memory.take<TokenId>(std::ssize(kept_ids_)));
  };
  Workspace need = Workspace::measuring();
  take(need);
  if (need.peak() > device_kept_.size()) {
    // Memory of the smaller one that the stream still reads must not be given back.
    wait(stream);
    // Twice as large, so that growing sets wait for the stream a few times in a run.
    const size_t size = std::max(need.peak(), 2 * device_kept_.size());
    device_kept_ = Buffer(size, stream.device);
    host_kept_ = Buffer::pinned(size, stream.device);
  }
  Workspace device(device_kept_), host(host_kept_);
  const auto [offsets, ids] = take(host);
  std::ranges::copy(kept_offsets_, offsets.begin());
  std::ranges::copy(kept_ids_, ids.begin());
  const auto on_device = take(device);
  kept_ = {on_device.first, on_device.second};
  copy(stream, device_kept_.bytes().part(0, device.used()),
       host_kept_.bytes().part(0, host.used()));
}

LogprobHead PackedForward::head(const PackedWeights& weights) const {
  return {.hidden = rows_.hidden.slice_rows(0, num_targets_),
          .weight = weights.head(),
          .targets = rows_.target_ids.device.first(static_cast<size_t>(num_targets_)),
          .inv_temperature = inv_temperature_,
          .kept = kept_};
}

PackedForward::Output PackedForward::forward(const Stream& stream, const PackedWeights& weights,
                                             std::span<const PackedSequence> sequences,
                                             const Wants& wants) {
  TR_CHECK(!sequences.empty() && (!wants.backward || activations_ != nullptr));
  sent_.wait();
  last_ = wants;
  build(sequences);
  send(stream);
  Workspace workspace(workspace_);
  model_.forward(stream, workspace, weights, builder_.batch(stream), kv_,
                 rows_.hidden.slice_rows(0, num_targets_),
                 wants.backward ? activations_.get() : nullptr);
  if (!wants.head) {
    TR_CHECK(on_cpu(), "a head of somebody else reads memory of the host");
    wait(stream);
    return {.hidden = rows_.hidden.slice_rows(0, num_targets_).host()};
  }
  const auto targets = static_cast<size_t>(num_targets_);
  const auto part = [&](const Mirror<float>& all) { return all.slice(0, num_targets_); };
  const Mirror<float> logprob = part(rows_.logprob), entropy = part(rows_.entropy);
  linear_logprob(stream, workspace,
                 {.head = head(weights),
                  .out = {.logprob = logprob.device,
                          .lse = rows_.lse.device.first(targets),
                          .entropy = wants.entropy ? entropy.device : std::span<float>{},
                          .logits = wants.backward ? activations_->logits() : Tensor()}});
  Output output;
  output.device_logprob = logprob.device;
  if (wants.entropy) output.device_entropy = entropy.device;
  if (!wants.host) return output;
  logprob.fetch(stream);
  if (wants.entropy) entropy.fetch(stream);
  wait(stream);
  output.logprob = logprob.host;
  if (wants.entropy) output.entropy = entropy.host;
  if (on_cpu()) output.hidden = rows_.hidden.slice_rows(0, num_targets_).host();
  return output;
}

PackedForward::GradientOut PackedForward::device_gradient() const {
  TR_CHECK(!on_cpu() && last_.backward);
  const auto targets = static_cast<size_t>(num_targets_);
  return {rows_.dlogprob.device.first(targets), rows_.dentropy.device.first(targets)};
}

Matrix PackedForward::state_gradient() {
  TR_CHECK(on_cpu() && last_.backward && !last_.head);
  return rows_.dhidden.slice_rows(0, num_targets_).host();
}

void PackedForward::backward_states(const Stream& stream, const PackedWeights& weights,
                                    Parameters& gradients, const BalancePass& balance) {
  TR_CHECK(last_.backward && !last_.head);
  Workspace workspace(workspace_);
  model_.backward(stream, workspace, weights, builder_.batch(stream), kv_, *activations_,
                  rows_.dhidden.slice_rows(0, num_targets_), gradients, balance);
}

std::vector<uint8_t> PackedForward::is_likeliest(const Stream& stream,
                                                 const PackedWeights& weights) {
  constexpr int64_t kLogitBytes = int64_t{16} << 20;
  const Weight weight = weights.head();
  const Placement& placement = model_.placement();
  const int64_t row_floats = row_stride(placement, weight.out, Dtype::kF32);
  const int64_t row_size = row_floats * static_cast<int64_t>(sizeof(float));
  // Where forward() had its scratch, which holds a row of logits at least.
  const auto room = std::min<int64_t>(kLogitBytes, static_cast<int64_t>(workspace_.size()));
  const int64_t chunk = std::clamp<int64_t>(room / row_size, 1, std::max<int64_t>(1, num_targets_));
  Buffer on_host(on_cpu() ? 0 : Workspace::aligned(static_cast<size_t>(chunk * row_size)));
  Workspace workspace(workspace_), host(on_host);
  const MirrorMatrix logits({workspace, host, placement}, chunk, weight.out);
  std::vector<uint8_t> likeliest;
  for (int64_t begin = 0; begin < num_targets_; begin += chunk) {
    beat();
    const int64_t rows = std::min(chunk, num_targets_ - begin);
    const MirrorMatrix out = logits.slice_rows(0, rows);
    linear(stream,
           {.x = rows_.hidden.slice_rows(begin, begin + rows), .weight = weight, .y = out.device});
    out.fetch(stream);
    wait(stream);
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<const float> values(out.host.row(row), static_cast<size_t>(weight.out));
      const auto target =
          static_cast<size_t>(rows_.target_ids.host[static_cast<size_t>(begin + row)]);
      // A tie counts as likeliest.
      likeliest.push_back(std::ranges::max(values) <= values[target] ? 1 : 0);
    }
  }
  return likeliest;
}

void PackedForward::backward(const Stream& stream, const PackedWeights& weights,
                             std::span<const float> dlogprob, std::span<const float> dentropy,
                             Parameters& gradients, const BalancePass& balance) {
  const auto targets = static_cast<size_t>(num_targets_);
  TR_CHECK(last_.backward && dlogprob.size() == targets, "{} gradients, {} targets",
           dlogprob.size(), num_targets_);
  TR_CHECK(dentropy.empty() || last_.entropy);
  TR_CHECK(gradients.device() == model_.placement().device, "gradients of device {}",
           gradients.device().index);
  // To where the model reads them.
  const auto sent = [&](std::span<const float> values, const Mirror<float>& to) {
    if (on_cpu() || values.empty() || values.data() == to.device.data()) return values;
    const Mirror<float> part = to.slice(0, num_targets_);
    std::ranges::copy(values, part.host.begin());
    part.send(stream);
    return std::span<const float>(part.device);
  };
  Workspace workspace(workspace_);
  const Tensor dhidden = rows_.dhidden.slice_rows(0, num_targets_);
  // The head first: it gives dhidden.
  linear_logprob_backward(
      stream, workspace,
      {.head = head(weights),
       .gradient = {.lse = rows_.lse.device.first(targets),
                    .entropy = dentropy.empty() ? std::span<const float>{}
                                                : rows_.entropy.device.first(targets),
                    .dlogprob = sent(dlogprob, rows_.dlogprob),
                    .dentropy = sent(dentropy, rows_.dentropy),
                    .dhidden = dhidden,
                    .dweight = head_gradient(model_, gradients),
                    .logits = activations_->logits()}});
  model_.backward(stream, workspace, weights, builder_.batch(stream), kv_, *activations_, dhidden,
                  gradients, balance);
}

}  // namespace tailrace
