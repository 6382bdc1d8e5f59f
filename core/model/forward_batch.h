// The input of every forward pass: prefill, decode and training (design section 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/view.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// Arrays are borrowed and live on the device.
struct ForwardBatch {
  std::span<const int32_t> token_ids;   // [tokens], each in [0, vocab)
  AttentionBatch sequences;             // positions, sequence offsets, KV block tables
  std::span<const int32_t> logit_rows;  // rows whose hidden state is wanted, ascending
  int max_context = 0;                  // largest position + 1
  // The experts that tokens go to in place of those that they would choose; row t holds k ascending
  // ids of each sparse layer, or kChoose throughout. [tokens, sparse layers * k], or no rows.
  MatrixView<const int32_t> choices = {};

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows.size()); }
};

// Owns the arrays of a ForwardBatch and fills them sequence by sequence. A builder that is cleared
// and filled again allocates nothing once it has held the largest batch.
class BatchBuilder {
 public:
  explicit BatchBuilder(int max_blocks_per_sequence);
  void clear();
  // Appends tokens at positions first_position, first_position + 1, ... of a sequence whose KV
  // lives in `blocks`; wants the logits of the rows listed in `logit_offsets` (indices into
  // `tokens`, ascending). `choices` [tokens, sparse layers * k] as ForwardBatch has them, or no
  // rows: the tokens choose for themselves.
  void add(std::span<const int32_t> tokens, int32_t first_position, std::span<const int32_t> blocks,
           std::span<const int32_t> logit_offsets, MatrixView<const int32_t> choices = {});
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids_.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(seq_offsets_.size()) - 1; }
  ForwardBatch batch() const;  // views into this builder, until the next change

 private:
  int max_blocks_;
  int max_context_ = 0;
  std::vector<int32_t> token_ids_, positions_, seq_offsets_{0}, block_tables_, logit_rows_;
  // [tokens, choices_per_token_]; none before the first sequence that was given any.
  std::vector<int32_t> choices_;
  int64_t choices_per_token_ = 0;
};

}  // namespace tailrace
