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
// Shortest average sequence that a full micro-batch is planned for; bounds the half-empty KV
// blocks.
constexpr int64_t kMinMeanTokens = 8;

int blocks_for(int64_t tokens) {
  return static_cast<int>((tokens + kBlockTokens - 1) / kBlockTokens);
}

int64_t buffer_tokens(const PackLimits& limits, int64_t max_sequence_tokens) {
  return std::max(limits.max_tokens, max_sequence_tokens);
}

// Every sequence wastes less than one block.
int num_blocks(const PackLimits& limits, int64_t max_sequence_tokens) {
  return blocks_for(buffer_tokens(limits, max_sequence_tokens)) +
         static_cast<int>(limits.max_sequences);
}

// Of the whole model and of the head: one after the other, so the larger of the two is enough.
size_t workspace_bytes(const ModelConfig& config, int64_t max_tokens, int64_t max_sequence_tokens,
                       int num_threads) {
  return std::max(Model::workspace_bytes(config, max_tokens, static_cast<int>(max_sequence_tokens),
                                         num_threads),
                  linear_logprob_workspace_bytes(max_tokens, config.num_ids(), config.hidden_size));
}

BatchRoom batch_room(const ModelConfig& config, const PackLimits& limits,
                     int64_t max_sequence_tokens) {
  return {.tokens = buffer_tokens(limits, max_sequence_tokens),
          .sequences = limits.max_sequences,
          .blocks_per_sequence = blocks_for(max_sequence_tokens),
          .choices_per_token = config.expert_shape().per_token(),
          .vocab = config.vocab_size,
          .blocks = num_blocks(limits, max_sequence_tokens)};
}

// One float a token, and one of each element of its hidden state.
size_t row_bytes(int64_t max_tokens) {
  return Workspace::aligned(static_cast<size_t>(max_tokens) * sizeof(float));
}
size_t hidden_bytes(const ModelConfig& config, int64_t max_tokens) {
  return Workspace::aligned(static_cast<size_t>(max_tokens * config.hidden_size) * sizeof(float));
}

// Of the rows that have logits; of a frozen head none.
Matrix head_gradient(const Model& model, Parameters& gradients) {
  if (model.config().lora) return {};
  return gradients.matrix(model.head_name()).slice_rows(0, model.config().num_ids());
}

}  // namespace

PackLimits pack_limits(int64_t microbatch_tokens, int64_t max_sequence_tokens) {
  const int64_t mean = std::max(kMinMeanTokens, max_sequence_tokens / 1024);
  return {.max_tokens = microbatch_tokens,
          .max_sequences = std::max<int64_t>(1, microbatch_tokens / mean)};
}

std::vector<std::pair<size_t, size_t>> pack(std::span<const PackedSequence> sequences,
                                            const PackLimits& limits) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (size_t begin = 0; begin < sequences.size();) {
    int64_t tokens = 0;
    size_t end = begin;
    while (end < sequences.size()) {
      auto length = static_cast<int64_t>(sequences[end].tokens.size());
      bool fits = tokens + length <= limits.max_tokens &&
                  static_cast<int64_t>(end - begin) < limits.max_sequences &&
                  sequences[end].inv_temperature == sequences[begin].inv_temperature;
      // The first goes in whatever its length: buffers hold max_sequence_tokens.
      if (end > begin && !fits) break;
      tokens += length;
      ++end;
    }
    ranges.emplace_back(begin, end);
    begin = end;
  }
  return ranges;
}

PackedForward::PackedForward(const Model& model, const PackLimits& limits,
                             int64_t max_sequence_tokens, bool with_backward, int num_threads)
    : model_(model),
      limits_(limits),
      max_sequence_tokens_(max_sequence_tokens),
      max_tokens_(buffer_tokens(limits, max_sequence_tokens)),
      builder_(batch_room(model.config(), limits, max_sequence_tokens)),
      kv_(model.config(), num_blocks(limits, max_sequence_tokens), kBlockTokens) {
  const ModelConfig& config = model.config();
  TR_CHECK(max_sequence_tokens >= 1 && max_sequence_tokens <= config.max_positions,
           "{} of {} positions", max_sequence_tokens, config.max_positions);
  workspace_ = Buffer(workspace_bytes(config, max_tokens_, max_sequence_tokens, num_threads));
  hidden_ = Buffer(hidden_bytes(config, max_tokens_));
  logprob_ = Buffer(row_bytes(max_tokens_));
  lse_ = Buffer(row_bytes(max_tokens_));
  entropy_ = Buffer(row_bytes(max_tokens_));
  if (with_backward) {
    dhidden_ = Buffer(hidden_bytes(config, max_tokens_));
    activations_ = model.make_activations(max_tokens_);
  }
}

std::vector<MemoryItem> PackedForward::memory(const ModelConfig& config, const PackLimits& limits,
                                              int64_t max_sequence_tokens, bool with_backward,
                                              int num_threads) {
  const int64_t tokens = buffer_tokens(limits, max_sequence_tokens);
  const size_t rows =
      3 * row_bytes(tokens) + (with_backward ? 2 : 1) * hidden_bytes(config, tokens) +
      static_cast<size_t>(BatchBuilder::bytes(batch_room(config, limits, max_sequence_tokens)));
  std::vector<MemoryItem> items = {
      {fmt::format("workspace of {} tokens", tokens),
       static_cast<int64_t>(workspace_bytes(config, tokens, max_sequence_tokens, num_threads) +
                            rows)},
      {fmt::format("keys and values of {} tokens", tokens),
       KvCache::bytes(config, num_blocks(limits, max_sequence_tokens), kBlockTokens)}};
  if (with_backward)
    items.push_back(
        {fmt::format("activations of {} tokens", tokens), Activations::bytes(config, tokens)});
  return items;
}

PackedForward::~PackedForward() = default;

void PackedForward::build(std::span<const PackedSequence> sequences) {
  builder_.clear();
  target_ids_.clear();
  kept_offsets_.clear();
  kept_ids_.clear();
  const bool has_sets = std::ranges::any_of(
      sequences, [](const PackedSequence& sequence) { return !sequence.kept.empty(); });
  if (has_sets) kept_offsets_.push_back(0);
  std::vector<int32_t> blocks, logit_offsets;
  int next_block = 0;
  for (const PackedSequence& sequence : sequences) {
    auto length = static_cast<int64_t>(sequence.tokens.size());
    TR_CHECK(!sequence.targets.empty() && length <= max_sequence_tokens_,
             "sequence of {} tokens, {} targets", length, sequence.targets.size());
    TR_CHECK(sequence.inv_temperature == sequences.front().inv_temperature,
             "two temperatures in one pass");
    blocks.resize(static_cast<size_t>(blocks_for(length)));
    // From 0 in every pass: nothing is kept from one to the next but what backward() reads.
    std::iota(blocks.begin(), blocks.end(), next_block);
    next_block += static_cast<int>(blocks.size());
    logit_offsets.clear();
    for (int32_t target : sequence.targets) {
      TR_CHECK(target >= 1 && target < length, "target {} of {}", target, length);
      // What stands before a token predicts it.
      logit_offsets.push_back(target - 1);
      target_ids_.push_back(sequence.tokens[static_cast<size_t>(target)]);
    }
    builder_.add(sequence.tokens, 0, blocks, logit_offsets, sequence.choices);
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

LogprobHead PackedForward::head(const PackedWeights& weights, ConstMatrix hidden) const {
  return {.hidden = hidden,
          .weight = weights.head(),
          .targets = target_ids_,
          .inv_temperature = inv_temperature_,
          .kept = {kept_offsets_, kept_ids_}};
}

PackedForward::Output PackedForward::forward(const Stream& stream, const PackedWeights& weights,
                                             std::span<const PackedSequence> sequences,
                                             const Wants& wants) {
  TR_CHECK(!sequences.empty() && (!wants.backward || activations_ != nullptr));
  build(sequences);
  last_ = wants;
  Workspace workspace(workspace_);
  Matrix hidden(hidden_.as<float>().data(), static_cast<int64_t>(target_ids_.size()),
                model_.config().hidden_size);
  model_.forward(stream, workspace, weights, builder_.batch(stream), kv_, hidden,
                 wants.backward ? activations_.get() : nullptr);
  std::span<float> entropy = wants.entropy ? rows(entropy_) : std::span<float>{};
  linear_logprob(stream, workspace,
                 {.head = head(weights, hidden),
                  .out = {.logprob = rows(logprob_), .lse = rows(lse_), .entropy = entropy}});
  return {rows(logprob_), entropy, hidden};
}

std::vector<uint8_t> PackedForward::is_likeliest(const Stream& stream,
                                                 const PackedWeights& weights) {
  constexpr int64_t kLogitBytes = int64_t{16} << 20;
  const Weight weight = weights.head();
  const int64_t targets = std::ssize(target_ids_), dim = model_.config().hidden_size;
  const int64_t row_size = weight.out * static_cast<int64_t>(sizeof(float));
  // Where forward() had its scratch, which holds a row of logits at least.
  const auto room = std::min<int64_t>(kLogitBytes, static_cast<int64_t>(workspace_.size()));
  const int64_t chunk = std::clamp<int64_t>(room / row_size, 1, std::max<int64_t>(1, targets));
  Workspace workspace(workspace_);
  const Matrix logits = take_matrix(workspace, chunk, weight.out);
  std::vector<uint8_t> likeliest;
  for (int64_t begin = 0; begin < targets; begin += chunk) {
    beat();
    const int64_t rows = std::min(chunk, targets - begin);
    const Matrix out = logits.slice_rows(0, rows);
    linear(stream, {.x = ConstMatrix(hidden_.as<float>().data() + begin * dim, rows, dim),
                    .weight = weight,
                    .y = out});
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<const float> values(out.row(row), static_cast<size_t>(weight.out));
      const auto target = static_cast<size_t>(target_ids_[static_cast<size_t>(begin + row)]);
      likeliest.push_back(std::ranges::max(values) <= values[target] ? 1 : 0);
    }
  }
  return likeliest;
}

void PackedForward::backward(const Stream& stream, const PackedWeights& weights,
                             std::span<const float> dlogprob, std::span<const float> dentropy,
                             Parameters& gradients, const BalancePass& balance) {
  TR_CHECK(last_.backward && dlogprob.size() == target_ids_.size(), "{} gradients, {} targets",
           dlogprob.size(), target_ids_.size());
  TR_CHECK(dentropy.empty() || last_.entropy);
  Workspace workspace(workspace_);
  auto targets = static_cast<int64_t>(target_ids_.size());
  Matrix hidden(hidden_.as<float>().data(), targets, model_.config().hidden_size);
  Matrix dhidden(dhidden_.as<float>().data(), targets, model_.config().hidden_size);
  std::span<const float> entropy = dentropy.empty() ? std::span<const float>{} : rows(entropy_);
  // The head first: it gives dhidden.
  linear_logprob_backward(stream, workspace,
                          {.head = head(weights, hidden),
                           .gradient = {.lse = rows(lse_),
                                        .entropy = entropy,
                                        .dlogprob = dlogprob,
                                        .dentropy = dentropy,
                                        .dhidden = dhidden,
                                        .dweight = head_gradient(model_, gradients)}});
  model_.backward(stream, workspace, weights, builder_.batch(stream), kv_, *activations_, dhidden,
                  gradients, balance);
}

}  // namespace tailrace
