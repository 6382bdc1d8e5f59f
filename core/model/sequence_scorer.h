// Log-probabilities of given tokens by prefill alone, and the likeliest tokens of each position.
//
// A sequence runs in pieces, and kLogitRows rows of the vocabulary at most are in memory at a time.
// Neither cut shows in the numbers (design rule 3).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/model/forward_batch.h"
#include "core/model/kv_cache.h"
#include "core/model/mirror.h"
#include "core/model/model.h"
#include "core/model/packed_weights.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

struct TopToken {
  int32_t id = 0;
  float logprob = 0;

  bool operator==(const TopToken&) const = default;
};

// Natural logs. Entry i is about position first + i, given all tokens before it.
struct SequenceScores {
  std::vector<float> logprobs;  // [tokens - first] of the tokens that stand there
  // [tokens - first][top_k or the vocabulary], the likeliest first, of equal logits the smaller id
  // first; a token has the bits there that it has in `logprobs`. Empty: none were wanted.
  std::vector<std::vector<TopToken>> top;
};

struct ScoreRequest {
  // At most max_tokens() of them, ids of the model. None are allowed.
  std::span<const int32_t> ids;
  int64_t first = 1;  // first position whose score is wanted, from 1 on
  int64_t top_k = 0;  // likeliest tokens of each position; 0: none
  // The factor of all logits, as log_softmax.h has it: 1 / temperature.
  float inverse_temperature = 1;
  // Hears the logits [rows, vocab] that follow the positions from first - 1 on, the last one too,
  // some rows at a time and in order. They are those of temperature 1. Empty: nobody asks.
  std::function<void(ConstMatrix)> on_logits = {};

  bool wants_logits() const { return top_k > 0 || on_logits; }
};

// Thread: one at a time, which has the stream.
class SequenceScorer {
 public:
  static constexpr int64_t kPieceTokens = 512, kLogitRows = 64;

  // Borrows the model. Takes memory for sequences of `max_tokens`, which the model's max_context()
  // covers; that of the logits with the first request that asks for any.
  SequenceScorer(const Model& model, const Stream& stream, int64_t max_tokens);
  SequenceScorer(const SequenceScorer&) = delete;

  int64_t max_tokens() const { return max_tokens_; }

  // `weights`: of the model, where it computes. They may be others in each call.
  SequenceScores score(const PackedWeights& weights, const ScoreRequest& request);

 private:
  struct Arrays;  // of a piece

  void score_piece(const PackedWeights& weights, const ScoreRequest& request, int64_t begin,
                   int64_t end, SequenceScores& scores);
  // The head over some rows. `position`: of the token that the first of them predicts.
  void score_rows(const PackedWeights& weights, const ScoreRequest& request, Workspace& workspace,
                  const Arrays& arrays, int64_t begin, int64_t end, int64_t position,
                  SequenceScores& scores);
  void prepare_logits();

  const Model& model_;
  const Stream stream_;
  const int64_t max_tokens_, piece_tokens_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<BatchBuilder> builder_;
  Buffer memory_, host_memory_;
  Buffer logit_memory_, logit_host_memory_;  // of no bytes before logits are wanted
  MirrorMatrix logits_;                      // [kLogitRows, vocab], in them
};

}  // namespace tailrace
