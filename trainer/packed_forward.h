// Teacher forcing: whole sequences side by side through the model, without padding, and the
// log-probabilities of the tokens that count. All of their logits exist at once where a backward
// pass will read them and there is memory for that (keeps_logits()).
//
// Alignment: the log-probability of token j comes from the hidden state of token j - 1.
//
// It computes where the model is. What goes in lies in the memory of the host; what comes out too
// where it is wanted there. Gradients stay where they are made.
//
// On another device than the CPU a pass that the host wants nothing of is only asked for. The next
// one waits until what this one read of the host's memory has been copied, and so at most until the
// device has begun with it.
//
// Thread: one at a time; owns the buffers of one micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/generate.h"
#include "core/model/mirror.h"
#include "core/model/model.h"
#include "core/model/parameters.h"
#include "core/run/memory_need.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/log_softmax.h"
#include "trainer/shared_prefix.h"

namespace tailrace {

// One sequence to run; borrows its tokens, until backward() if that comes. At least one target.
struct PackedSequence {
  std::span<const TokenId> tokens = {};  // all of its context; ids within the vocabulary
  // Ascending positions >= 1 whose log-probability is wanted. Where hidden states alone are
  // (Wants), the position behind the last token may be one: its state is that of the last token.
  std::span<const int32_t> targets = {};
  float inv_temperature = 1;
  // [targets] The log-probability is that of a draw from the set of the target
  // (kernels/ops/log_softmax.h).
  KeptSets kept = {};
  // The experts that its tokens go to, as ForwardBatch has them; no rows: they choose.
  MatrixView<const int32_t> choices = {};
};

// How much goes into one pass. A sequence is never split; one that is longer than max_tokens goes
// alone. There are twice the blocks of keys and values that max_tokens fill in one piece: sequences
// that add a few tokens each to what they share end a pass before its tokens do.
struct PackLimits {
  int64_t max_tokens = 0;  // rows of a pass
  int64_t max_sequences = 0;
  // Sequences of a pass compute once the tokens that they share (shared_prefix.h).
  bool shares = false;
};
// Sequences are on average longer where the longest is very long: each takes a row of block ids.
PackLimits pack_limits(int64_t microbatch_tokens, int64_t max_sequence_tokens, bool shares);

// Cuts [0, sequences.size()) into ranges [begin, end), in order, as full as the limits allow.
// Sequences of different temperatures do not share a range: the head has one temperature a call.
// So many as are `together`, one behind the other, do so; they must fit one pass
// (pass_tokens()).
std::vector<std::pair<size_t, size_t>> pack(std::span<const PackedSequence> sequences,
                                            const PackLimits& limits, size_t together = 1);
// Rows that these take in one pass.
int64_t pass_tokens(std::span<const PackedSequence> sequences, const PackLimits& limits);

// The gradient of the head's rows that have logits, [num_ids, hidden_size]; no rows: it is frozen.
Tensor head_gradient(const Model& model, Parameters& gradients);

// The data that a forward pass keeps for the backward pass behind it.
enum class ForBackward : uint8_t { kNothing, kActivations, kInputs };  // kInputs: of layers alone

class PackedForward {
 public:
  // Room for micro-batches of `limits` and for single sequences of up to max_sequence_tokens.
  PackedForward(const Model& model, const PackLimits& limits, int64_t max_sequence_tokens,
                ForBackward keeps, int num_threads);
  ~PackedForward();
  PackedForward(const PackedForward&) = delete;
  // The memory that the same arguments allocate.
  static std::vector<MemoryItem> memory(const ModelConfig& config, const PackLimits& limits,
                                        int64_t max_sequence_tokens, ForBackward keeps,
                                        int num_threads, const Placement& placement = {});

  // As they hold for this model: experts and another device than the CPU share nothing.
  const PackLimits& limits() const { return limits_; }
  int64_t max_tokens() const { return max_tokens_; }  // of a pass
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }
  int64_t num_rows() const { return builder_.num_tokens(); }  // that the last pass computed

  // Results for every target of the sequences, in order; views until the next forward().
  struct Output {
    std::span<const float> logprob = {}, entropy = {};  // [targets]; the second if asked for
    // [targets, hidden_size] what the head reads: the state of token j - 1, after the final norm.
    // No rows where the model is not on the CPU.
    ConstMatrix hidden = {};
    // The first two in memory of the model's device, whatever `host` says.
    std::span<const float> device_logprob = {}, device_entropy = {};
  };
  struct Wants {
    bool entropy = false;
    bool backward = false;  // keep what backward() needs
    bool host = true;       // logprob and entropy; else they are empty, and nobody waits
    bool head = true;       // else hidden states alone are computed, on the CPU
  };
  Output forward(const Stream& stream, const PackedWeights& weights,
                 std::span<const PackedSequence> sequences, const Wants& wants);

  // Where a loss writes the gradient of the last forward(), [targets] both.
  struct GradientOut {
    std::span<float> dlogprob, dentropy;
  };
  // One on the device; not on the CPU.
  GradientOut device_gradient() const;

  // The same for a forward() without the head, whose owner has one: the gradient of each hidden
  // state, [targets, hidden_size], is written to state_gradient() in between.
  Matrix state_gradient();
  void backward_states(const Stream& stream, const PackedWeights& weights, Parameters& gradients,
                       const BalancePass& balance = {});

  // For every target of the last forward(), in order: 1 where no other token has a larger logit,
  // else 0. The same weights. It allocates the logits of a few rows, for measurements only.
  std::vector<uint8_t> is_likeliest(const Stream& stream, const PackedWeights& weights);

  // Adds the gradient of the sequences of the last forward() to `gradients`; that wanted
  // `backward`. dlogprob [targets]; dentropy [targets] or empty, and needs the entropy of that
  // forward(). Both of the host, or device_gradient(). The same weights.
  void backward(const Stream& stream, const PackedWeights& weights, std::span<const float> dlogprob,
                std::span<const float> dentropy, Parameters& gradients,
                const BalancePass& balance = {});

 private:
  // Rows of a micro-batch that host and model exchange, on both sides, and the model's own rows.
  struct Rows {
    Tensor hidden, dhidden;  // [max_tokens, hidden_size]; the second with backward
    Mirror<TokenId> target_ids;
    Mirror<float> logprob, lse, entropy;  // [max_tokens]
    Mirror<float> dlogprob, dentropy;     // the same; on a device other than the CPU

    Rows() = default;
    Rows(const MirrorMemory& memory, const ModelConfig& config, int64_t max_tokens,
         bool with_backward);
    struct Bytes {
      size_t device = 0, host = 0;
    };
    static Bytes bytes(const ModelConfig& config, int64_t max_tokens, bool with_backward,
                       const Placement& placement);
  };

  void build(std::span<const PackedSequence> sequences);
  void send(const Stream& stream);
  void send_kept(const Stream& stream);
  LogprobHead head(const PackedWeights& weights) const;
  bool on_cpu() const { return model_.placement().device.kind == DeviceKind::kCpu; }

  const Model& model_;
  PackLimits limits_;
  int64_t max_sequence_tokens_, max_tokens_;
  BatchBuilder builder_;
  KvCache kv_;
  std::unique_ptr<Activations> activations_;
  Buffer workspace_;
  Buffer device_rows_, host_rows_;  // the second, pinned, where the device is not the CPU
  Rows rows_;
  SharedPrefixes prefixes_;
  std::vector<int32_t>
      tables_;               // block ids of each sequence, blocks_for(max_sequence_tokens) apart
  int64_t num_targets_ = 0;  // of the last forward()
  // Their sets, as KeptSets has them; empty when none has one.
  std::vector<int64_t> kept_offsets_;
  std::vector<TokenId> kept_ids_;
  // Both, where the device is not the CPU: there, and pinned. They grow with the largest.
  Buffer device_kept_, host_kept_;
  KeptSets kept_;    // where the model reads them
  StreamMark sent_;  // behind the copies of the last forward()
  float inv_temperature_ = 1;
  Wants last_;
};

}  // namespace tailrace
