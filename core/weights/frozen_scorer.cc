#include "core/weights/frozen_scorer.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/kv_cache.h"
#include "core/weights/frozen_base.h"

namespace tailrace {
namespace {

void settle(float& score, const FrozenModel& of) {
  if (!std::isfinite(score))
    throw UserError(
        "policy {}: it gives a token the log-probability {}; its weights overflow float32, or are "
        "damaged ({})",
        of.name, score, of.dir.string());
  // Rounding alone may put a certain token above 0.
  score = std::min(score, 0.0f);
}

}  // namespace

FrozenScorer::FrozenScorer(const FrozenModel& of, const Elements& compute, const Stream& stream,
                           int64_t max_tokens)
    : of_(of),
      model_(of.model, max_tokens, Placement::on(stream.device, compute)),
      weights_(load_frozen_base(stream, of.dir, of.model, compute.weights).weights),
      scorer_(model_, stream, max_tokens) {}

SequenceScores FrozenScorer::score(const ScoreRequest& request) {
  SequenceScores scores = scorer_.score(*weights_, request);
  for (float& score : scores.logprobs) settle(score, of_);
  for (auto& row : scores.top)
    for (TopToken& token : row) settle(token.logprob, of_);
  return scores;
}

FrozenScorer::Bytes FrozenScorer::bytes(const FrozenModel& of, const Elements& compute,
                                        Device device, int threads, int64_t max_tokens) {
  const Placement placement = Placement::on(device, compute);
  constexpr int kBlockTokens = 16;
  const int64_t blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  return {.weights = PackedWeights::bytes(of.model, compute.weights, device),
          .keys_and_values =
              KvCache::bytes(of.model, blocks, kBlockTokens, /*keeps_choices=*/false, placement),
          .workspace = Model::bytes(of.model, max_tokens) +
                       static_cast<int64_t>(Model::workspace_bytes(
                           of.model, std::min(SequenceScorer::kPieceTokens, max_tokens),
                           static_cast<int>(blocks) * kBlockTokens, threads, placement))};
}

}  // namespace tailrace
