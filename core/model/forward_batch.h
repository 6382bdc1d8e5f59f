// The input of every forward pass: prefill, decode and training (design section 4).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/attention.h"

namespace tailrace {

// The begin of a KV block for a sequence that goes on in the middle of another one's block.
struct BlockCopy {
  int32_t from = 0, to = 0, tokens = 0;  // the first tokens of block `from`, to block `to`
};

// Arrays are borrowed and live on the device.
struct ForwardBatch {
  std::span<const int32_t> token_ids;   // [tokens], each in [0, vocab)
  AttentionBatch sequences;             // positions, sequence offsets, KV block tables
  std::span<const int32_t> logit_rows;  // rows whose hidden state is wanted, ascending
  int max_context = 0;                  // largest position + 1
  int64_t vocab = 0, blocks = 0;        // ids of tokens and of KV blocks lie below them
  // The experts that tokens go to in place of those that they would choose; row t holds k ascending
  // ids of each sparse layer, or kChoose throughout. [tokens, sparse layers * k], or no rows.
  MatrixView<const int32_t> choices = {};
  // Made in order in each layer, between what the rows write and what they read. On the CPU alone.
  std::span<const BlockCopy> copies = {};

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows.size()); }
};

// The most that a batch holds, and what its numbers may be.
struct BatchRoom {
  int64_t tokens = 0, sequences = 0;
  int blocks_per_sequence = 1;
  int64_t choices_per_token = 0;  // where a batch gives any: sparse layers * k
  bool takes_draws = false;       // add_drawn() may be called
  bool shares = false;            // sequences may go on from others, on the CPU
  int64_t vocab = 0, blocks = 0;  // ids of tokens and of KV blocks lie below them
};

// The ends of draws that the host has not seen, where each row of a batch is a sequence of its own:
// what ends them (kernels/ops/end_drawn.h), on a GPU.
struct DrawnEnds {
  std::span<const int32_t> stops = {};  // of the device; empty: nobody looks
  int32_t spare_block = 0;
};

// Owns the arrays of a ForwardBatch, side by side in one piece of memory, and fills them sequence
// by sequence. On a device other than the CPU they are filled here and copied there in one piece.
// Allocates nothing once it is made.
class BatchBuilder {
 public:
  explicit BatchBuilder(const BatchRoom& room, Device device = {});
  static int64_t bytes(const BatchRoom& room);  // here, and as many on another device
  void clear();
  // Appends tokens at positions first_position, first_position + 1, ... of a sequence whose KV
  // lives in `blocks`; wants the logits of the rows listed in `logit_offsets` (indices into
  // `tokens`, ascending). `choices` [tokens, sparse layers * k] as ForwardBatch has them, or no
  // rows: the tokens choose for themselves. What does not fit, or is no id, is our own mistake: who
  // takes tokens from outside has checked them.
  // `parent`: the sequence of the batch that has the positions before the first one in its rows, or
  // in those of its own parent; -1: the cache has them, or there are none.
  void add(std::span<const int32_t> tokens, int32_t first_position, std::span<const int32_t> blocks,
           std::span<const int32_t> logit_offsets, MatrixView<const int32_t> choices = {},
           int32_t parent = -1);
  void add_copy(const BlockCopy& copy);
  // The same of one token whose logits are wanted and whose id the host does not know: batch() will
  // take it from there.
  void add_drawn(int32_t from, int32_t position, std::span<const int32_t> blocks);
  // Brings a batch of sequences of one token each, whose logits are all wanted, to a size of its
  // own, from where on what batch() asks of the stream depends on the size alone: `sequences`, of
  // which the added ones compute token 0 at the begin of `block`, for nobody, and contexts of
  // `max_context` at most. Those that are added write the same bits to the same place.
  void pad(int64_t sequences, int32_t block, int max_context);
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_sequences() const { return num_sequences_; }
  int max_context() const { return max_context_; }
  // Views until the next change, which waits until the stream of the device has come so far.
  // `drawn`, of the device: what add_drawn() meant, as take_drawn() has it.
  ForwardBatch batch(const Stream& stream = {}, std::span<const int32_t> drawn = {},
                     const DrawnEnds& ends = {}) const;

 private:
  // In this order: a batch without choices ends before them.
  struct Arrays {
    std::span<int32_t> token_ids, from, positions, logit_rows, seq_offsets, block_tables, choices,
        parents, common_blocks;
    std::span<BlockCopy> copies;

    Arrays(Workspace& memory, const BatchRoom& room);
    static Arrays of(Buffer& memory, const BatchRoom& room);
  };

  BatchRoom room_;
  Buffer memory_;
  Arrays arrays_;
  mutable Buffer on_device_;  // of no bytes where the device is the CPU
  mutable bool is_copied_ = false;
  int64_t num_tokens_ = 0, num_sequences_ = 0, num_logit_rows_ = 0, num_copies_ = 0;
  int max_context_ = 0;
  bool gives_choices_ = false, takes_draws_ = false;
};

}  // namespace tailrace
