#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ref/ref.h"

namespace tailrace::ref {

namespace {

// By a sort of the whole vocabulary, likeliest first.
std::vector<int32_t> keep_tokens(std::span<const float> logits, const SamplingRow& row) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto z = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return z(a) > z(b); });
  if (row.greedy) return {order[0]};
  if (row.top_k > 0 && row.top_k < std::ssize(order)) order.resize(static_cast<size_t>(row.top_k));
  const double top = z(order[0]);
  const auto weight = [&](int32_t id) {
    return std::exp((double{z(id)} - top) * row.inv_temperature);
  };
  double total = 0, reached = 0;
  for (const int32_t id : order) total += weight(id);
  std::vector<int32_t> kept;
  for (const int32_t id : order) {
    if (!kept.empty() && weight(id) < row.min_p) break;
    kept.push_back(id);
    reached += weight(id);
    // top_p counts the mass among the top_k, as samplers that apply one after the other do.
    if (row.top_p < 1 && reached >= row.top_p * total) break;
  }
  return kept;
}

// Draws from ids in ascending order.
int32_t draw(std::span<const float> logits, const std::vector<int32_t>& ids,
             const SamplingRow& row) {
  const auto z = [&](int32_t id) { return double{logits[static_cast<size_t>(id)]}; };
  double top = z(ids[0]), total = 0;
  for (const int32_t id : ids) top = std::max(top, z(id));
  const auto weight = [&](int32_t id) { return std::exp((z(id) - top) * row.inv_temperature); };
  for (const int32_t id : ids) total += weight(id);
  double passed = 0;
  int32_t last = ids[0];
  for (const int32_t id : ids) {
    // Rounding may leave the sum short of uniform * total: then the last token that has a
    // probability at all is drawn.
    if (weight(id) > 0) last = id;
    passed += weight(id);
    if (passed > row.uniform * total) break;
  }
  return last;
}

}  // namespace

void sample(const SampleTokens& args) {
  const ConstMatrix logits = args.logits.host();
  const int64_t vocab = logits.cols;
  for (int64_t r = 0; r < logits.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    const SamplingRow& row = args.rows[i];
    const std::span<const float> z(logits.row(r), static_cast<size_t>(vocab));
    log_sum_exp(logits.slice_rows(r, r + 1), row.inv_temperature, args.lse.subspan(i, 1), {});
    args.drawn[i] = -1;
    args.kept_counts[i] = 0;
    // Logits that are not finite draw nothing, which the -1 tells the caller.
    if (!std::isfinite(args.lse[i])) continue;
    std::vector<int32_t> ids = keep_tokens(z, row);
    std::ranges::sort(ids);
    args.drawn[i] = draw(z, ids, row);
    args.logprobs[i] = z[static_cast<size_t>(args.drawn[i])] * row.inv_temperature - args.lse[i];
    if (!truncates(row, vocab)) continue;
    args.kept_counts[i] = static_cast<int32_t>(ids.size());
    const std::vector<int64_t> offsets = {0, std::ssize(ids)};
    kept_log_sum_exp(logits.slice_rows(r, r + 1), {offsets, ids}, row.inv_temperature,
                     args.kept_lse.subspan(i, 1));
    std::ranges::copy(ids, args.kept_ids.begin() + r * vocab);
  }
}

}  // namespace tailrace::ref
