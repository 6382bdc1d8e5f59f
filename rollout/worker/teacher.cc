#include "rollout/worker/teacher.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/pulse.h"

namespace tailrace {

Teacher::Teacher(const TeacherConfig& config, const Elements& compute, const Stream& stream,
                 int64_t max_tokens)
    : top_k_(config.top_k), scorer_(config.model, compute, stream, max_tokens) {}

void Teacher::score(Trajectory& trajectory) {
  for (size_t s = 0; s < trajectory.segments.size(); ++s) {
    beat();
    const std::vector<TokenId> context = begin_scores(trajectory.segments, s);
    if (context.empty()) continue;
    Segment& segment = trajectory.segments[s];
    const auto inherited = static_cast<size_t>(segment.parent_tokens);
    const auto is_sampled = [](TokenRole role) { return role == TokenRole::kSampled; };
    const auto first = std::ranges::find_if(segment.roles, is_sampled) - segment.roles.begin();
    // Nothing predicts the first token of a context, and nobody trains it.
    const size_t from = std::max<size_t>(inherited + static_cast<size_t>(first), 1);
    if (from >= context.size()) continue;
    const SequenceScores scores =
        scorer_.score({.ids = context,
                       .first = static_cast<int64_t>(from),
                       .top_k = top_k_,
                       .inverse_temperature = inverse_temperature(trajectory.sampling)});
    for (size_t at = from; at < context.size(); ++at) {
      const size_t i = at - inherited, k = at - from;
      if (!is_sampled(segment.roles[i])) continue;
      segment.teacher_logprobs[i] = scores.logprobs[k];
      if (top_k_ == 0) continue;
      for (const auto& [id, logprob] : scores.top[k]) {
        segment.teacher_top_ids.push_back(id);
        segment.teacher_top_logprobs.push_back(logprob);
      }
    }
  }
}

std::vector<MemoryItem> Teacher::memory(const TeacherConfig& config, const Elements& compute,
                                        Device device, int threads, int64_t max_tokens) {
  const FrozenScorer::Bytes bytes =
      FrozenScorer::bytes(config.model, compute, device, threads, max_tokens);
  const std::string& name = config.model.name;
  return {{fmt::format("weights of policy {}, packed", name), bytes.weights},
          {fmt::format("keys and values of policy {}", name), bytes.keys_and_values},
          {fmt::format("workspace of policy {}", name), bytes.workspace}};
}

}  // namespace tailrace
