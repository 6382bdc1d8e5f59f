#include "core/model/sequence_scorer.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/backend.h"
#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

constexpr int kBlockTokens = 16;

// The `k` likeliest of a row of logits, given its log-sum-exp.
std::vector<TopToken> top_of(std::span<const float> logits, float inverse_temperature, float lse,
                             int64_t k) {
  // Until the end `logprob` holds the logit: two of them may round to one log-probability.
  const auto is_before = [](const TopToken& a, const TopToken& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
  };
  std::vector<TopToken> top;  // a heap: the last of them is in front
  top.reserve(static_cast<size_t>(k));
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id] * inverse_temperature;
    if (std::ssize(top) == k) {
      // Ids ascend, so that of equal ones the earlier stays. A NaN is never above.
      if (!(logit > top.front().logprob)) continue;
      std::ranges::pop_heap(top, is_before);
      top.pop_back();
    }
    // Comparisons with NaN are no order.
    const bool is_number = logit == logit;
    top.push_back(
        {static_cast<int32_t>(id), is_number ? logit : -std::numeric_limits<float>::infinity()});
    std::ranges::push_heap(top, is_before);
  }
  std::ranges::sort_heap(top, is_before);
  // The expression of linear_logprob(), for the same bits.
  for (TopToken& token : top) token.logprob -= lse;
  return top;
}

}  // namespace

struct SequenceScorer::Arrays {
  Tensor hidden;  // [rows, hidden], of the device
  Mirror<int32_t> targets;
  Mirror<float> logprobs, lse;

  Arrays(const MirrorMemory& memory, const ModelConfig& config, int64_t rows)
      : hidden(take_tensor(memory.device, memory.placement, rows, config.hidden_size,
                           memory.placement.operands)),
        targets(memory, rows),
        logprobs(memory, rows),
        lse(memory, rows) {}
};

SequenceScorer::SequenceScorer(const Model& model, const Stream& stream, int64_t max_tokens)
    : model_(model),
      stream_(stream),
      max_tokens_(max_tokens),
      piece_tokens_(std::min(kPieceTokens, max_tokens)) {
  TR_CHECK(max_tokens >= 1 && max_tokens <= model.max_context(), "{} tokens, a context of {}",
           max_tokens, model.max_context());
  const ModelConfig& config = model.config();
  const Placement& placement = model.placement();
  const Device device = placement.device;
  const auto num_blocks = static_cast<int>((max_tokens + kBlockTokens - 1) / kBlockTokens);
  blocks_.resize(static_cast<size_t>(num_blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  kv_ = std::make_unique<KvCache>(config, num_blocks, kBlockTokens, /*keeps_choices=*/false,
                                  placement);
  builder_ = std::make_unique<BatchBuilder>(BatchRoom{.tokens = piece_tokens_,
                                                      .sequences = 1,
                                                      .blocks_per_sequence = num_blocks,
                                                      .vocab = config.vocab_size,
                                                      .blocks = num_blocks},
                                            device);
  // The arrays are laid out once without memory, which says how much they take.
  Workspace on_device = Workspace::measuring(), on_host = Workspace::measuring();
  Arrays({on_device, on_host, placement}, config, piece_tokens_);
  const size_t forward =
      model.workspace_bytes(piece_tokens_, num_blocks * kBlockTokens, num_threads(stream));
  const size_t head =
      linear_logprob_workspace_bytes(piece_tokens_, config.num_ids(), config.hidden_size, device);
  // One after the other in the same memory.
  memory_ = Buffer(on_device.peak() + std::max(forward, head), device);
  host_memory_ = Buffer::pinned(on_host.peak(), device);
}

void SequenceScorer::prepare_logits() {
  if (logits_.host.rows > 0) return;
  const Placement& placement = model_.placement();
  const int64_t vocab = model_.config().num_ids();
  Workspace on_device = Workspace::measuring(), on_host = Workspace::measuring();
  MirrorMatrix({on_device, on_host, placement}, kLogitRows, vocab);
  logit_memory_ = Buffer(on_device.peak(), placement.device);
  logit_host_memory_ = Buffer::pinned(on_host.peak(), placement.device);
  Workspace workspace(logit_memory_), host_workspace(logit_host_memory_);
  logits_ = MirrorMatrix({workspace, host_workspace, placement}, kLogitRows, vocab);
}

SequenceScores SequenceScorer::score(const PackedWeights& weights, const ScoreRequest& request) {
  const auto num_tokens = std::ssize(request.ids);
  TR_CHECK(num_tokens <= max_tokens_ && request.first >= 1 && request.top_k >= 0,
           "{} of {} tokens from {} on, the first {}", num_tokens, max_tokens_, request.first,
           request.top_k);
  if (request.wants_logits()) prepare_logits();
  SequenceScores scores;
  const auto wanted = static_cast<size_t>(std::max<int64_t>(num_tokens - request.first, 0));
  scores.logprobs.resize(wanted);
  if (request.top_k > 0) scores.top.resize(wanted);
  if (wanted == 0 && !request.on_logits) return scores;
  // The last token predicts nothing that stands there.
  const int64_t end = request.on_logits ? num_tokens : num_tokens - 1;
  for (int64_t begin = 0; begin < end; begin += piece_tokens_)
    score_piece(weights, request, begin, std::min(end, begin + piece_tokens_), scores);
  return scores;
}

void SequenceScorer::score_piece(const PackedWeights& weights, const ScoreRequest& request,
                                 int64_t begin, int64_t end, SequenceScores& scores) {
  const std::span<const int32_t> ids = request.ids;
  // Rows of the piece from here on predict a token that is wanted.
  const int64_t from = std::clamp(request.first - 1, begin, end), rows = end - from;
  std::vector<int32_t> wanted(static_cast<size_t>(rows));
  std::iota(wanted.begin(), wanted.end(), static_cast<int32_t>(from - begin));
  builder_->clear();
  // All blocks of the sequence in every piece: the cache keeps what earlier pieces have written.
  builder_->add(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                static_cast<int32_t>(begin), blocks_, wanted);
  Workspace workspace(memory_), host_workspace(host_memory_);
  const Arrays arrays({workspace, host_workspace, model_.placement()}, model_.config(),
                      piece_tokens_);
  model_.forward(stream_, workspace, weights, builder_->batch(stream_), *kv_,
                 arrays.hidden.slice_rows(0, rows), nullptr);
  for (int64_t row = 0; row < rows; ++row) {
    const auto next = static_cast<size_t>(from + row + 1);
    // Behind the last token there is none; its row has a target that nobody reads.
    arrays.targets.host[static_cast<size_t>(row)] = next < ids.size() ? ids[next] : 0;
  }
  arrays.targets.slice(0, rows).send(stream_);
  const int64_t step = request.wants_logits() ? kLogitRows : std::max<int64_t>(rows, 1);
  for (int64_t row = 0; row < rows; row += step)
    score_rows(weights, request, workspace, arrays, row, std::min(rows, row + step), from + row + 1,
               scores);
}

void SequenceScorer::score_rows(const PackedWeights& weights, const ScoreRequest& request,
                                Workspace& workspace, const Arrays& arrays, int64_t begin,
                                int64_t end, int64_t position, SequenceScores& scores) {
  const int64_t rows = end - begin;
  const bool wants_logits = request.wants_logits();
  const MirrorMatrix logits = wants_logits ? logits_.slice_rows(0, rows) : MirrorMatrix();
  const bool on_cpu = model_.placement().device.kind == DeviceKind::kCpu;
  const Mirror<float> logprobs = arrays.logprobs.slice(begin, rows),
                      lse = arrays.lse.slice(begin, rows);
  const Tensor hidden = arrays.hidden.slice_rows(begin, end);
  // The head keeps its logits on the CPU alone. Elsewhere they are made again.
  linear_logprob(stream_, workspace,
                 {.head = {.hidden = hidden,
                           .weight = weights.head(),
                           .targets = arrays.targets.slice(begin, rows).device,
                           .inv_temperature = request.inverse_temperature},
                  .out = {.logprob = logprobs.device,
                          .lse = lse.device,
                          .entropy = {},
                          .logits = on_cpu ? logits.device : Tensor()}});
  if (wants_logits && !on_cpu) {
    linear(stream_, {.x = hidden, .weight = weights.head(), .y = logits.device});
    logits.fetch(stream_);
  }
  logprobs.fetch(stream_);
  lse.fetch(stream_);
  wait(stream_);
  const int64_t num_scored = std::min<int64_t>(rows, std::ssize(request.ids) - position);
  const auto at = static_cast<size_t>(position - request.first);
  std::ranges::copy(logprobs.host.first(static_cast<size_t>(num_scored)),
                    scores.logprobs.begin() + static_cast<std::ptrdiff_t>(at));
  if (request.on_logits) request.on_logits(logits.host);
  if (request.top_k == 0) return;
  const int64_t k = std::min(request.top_k, logits.host.cols);
  parallel_for(stream_, num_scored, /*grain=*/1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const auto i = static_cast<size_t>(row);
      scores.top[at + i] = top_of({logits.host.row(row), static_cast<size_t>(logits.host.cols)},
                                  request.inverse_temperature, lse.host[i], k);
    }
  });
}

}  // namespace tailrace
