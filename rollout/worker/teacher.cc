#include "rollout/worker/teacher.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/kv_cache.h"
#include "core/weights/frozen_base.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

void require_finite(float score, const TeacherConfig& config) {
  if (std::isfinite(score)) return;
  throw UserError(
      "policy {}: it gives a token the log-probability {}; its weights overflow float32, or are "
      "damaged ({})",
      config.name, score, config.dir.string());
}

}  // namespace

Teacher::Teacher(const TeacherConfig& config, const Elements& compute, const Stream& stream,
                 int64_t max_tokens)
    : config_(config),
      model_(config.model, max_tokens, Placement::on(stream.device, compute)),
      weights_(load_frozen_base(stream, config.dir, config.model, compute.weights).weights),
      scorer_(model_, stream, max_tokens) {}

void Teacher::score(Trajectory& trajectory) {
  for (size_t s = 0; s < trajectory.segments.size(); ++s) {
    beat();
    std::vector<TokenId> context = context_of(trajectory.segments, s);
    Segment& segment = trajectory.segments[s];
    const size_t inherited = context.size() - segment.tokens.size();
    segment.teacher_logprobs.assign(segment.tokens.size(), 0.0f);
    segment.teacher_top_ids.clear(), segment.teacher_top_logprobs.clear();
    const auto is_sampled = [](TokenRole role) { return role == TokenRole::kSampled; };
    const auto first = std::ranges::find_if(segment.roles, is_sampled) - segment.roles.begin();
    if (first == std::ssize(segment.roles)) continue;
    // Nothing predicts the first token of a context, and nobody trains it.
    const size_t from = std::max<size_t>(inherited + static_cast<size_t>(first), 1);
    while (!is_sampled(segment.roles[context.size() - inherited - 1])) context.pop_back();
    if (from >= context.size()) continue;
    const SequenceScores scores =
        scorer_.score(*weights_, {.ids = context,
                                  .first = static_cast<int64_t>(from),
                                  .top_k = config_.top_k,
                                  .inverse_temperature = inverse_temperature(trajectory.sampling)});
    for (size_t at = from; at < context.size(); ++at) {
      const size_t i = at - inherited, k = at - from;
      if (!is_sampled(segment.roles[i])) continue;
      // Rounding alone may put a certain token above 0.
      segment.teacher_logprobs[i] = std::min(scores.logprobs[k], 0.0f);
      require_finite(scores.logprobs[k], config_);
      if (config_.top_k == 0) continue;
      for (const auto& [id, logprob] : scores.top[k]) {
        require_finite(logprob, config_);
        segment.teacher_top_ids.push_back(id);
        segment.teacher_top_logprobs.push_back(std::min(logprob, 0.0f));
      }
    }
  }
}

std::vector<MemoryItem> Teacher::memory(const TeacherConfig& config, const Elements& compute,
                                        Device device, int threads, int64_t max_tokens) {
  const Placement placement = Placement::on(device, compute);
  constexpr int kBlockTokens = 16;
  const int64_t blocks = (max_tokens + kBlockTokens - 1) / kBlockTokens;
  return {{fmt::format("weights of policy {}, packed", config.name),
           PackedWeights::bytes(config.model, compute.weights, device)},
          {fmt::format("keys and values of policy {}", config.name),
           KvCache::bytes(config.model, blocks, kBlockTokens, /*keeps_choices=*/false, placement)},
          {fmt::format("workspace of policy {}", config.name),
           Model::bytes(config.model, max_tokens) +
               static_cast<int64_t>(Model::workspace_bytes(
                   config.model, std::min(SequenceScorer::kPieceTokens, max_tokens),
                   static_cast<int>(blocks) * kBlockTokens, threads, placement))}};
}

}  // namespace tailrace
