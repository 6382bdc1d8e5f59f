#include "trainer/distillation_pass.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "trainer/gradient_tree.h"

namespace tailrace {
namespace {

// Rows whose logits exist at once. The size of the vocabulary alone decides it, because the sum
// over rows of the head's gradient is cut there.
int64_t rows_at_once(int64_t num_ids) {
  constexpr int64_t kLogitFloats = 16 << 20, kFewest = 16, kMost = 256;
  return std::clamp(kLogitFloats / num_ids, kFewest, kMost);
}

struct Scratch {
  std::span<float> logits, lse;

  Scratch(Workspace& workspace, int64_t num_ids)
      : logits(workspace.take<float>(rows_at_once(num_ids) * num_ids)),
        lse(workspace.take<float>(rows_at_once(num_ids))) {}
};

std::span<const TokenId> support_of(const TeacherScores& scores, size_t target) {
  const auto begin = static_cast<size_t>(scores.offsets[target]);
  return std::span(scores.ids)
      .subspan(begin, static_cast<size_t>(scores.offsets[target + 1]) - begin);
}

// The tokens with the largest logits; of equal ones those that come first.
std::vector<TokenId> likeliest(std::span<const float> logits, size_t count) {
  std::vector<TokenId> top(count);
  const auto all = std::views::iota(TokenId{0}, static_cast<TokenId>(logits.size()));
  std::ranges::partial_sort_copy(all, top, [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  return top;
}

bool are_logprobs(std::span<const float> values) {
  // A float's sum over a vocabulary may put a certain token a little above 0.
  constexpr float kMost = 1e-3f;
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x) && x <= kMost; });
}

Result<void> check_supports(const TeacherScores& scores, size_t targets, int64_t num_ids) {
  const auto& offsets = scores.offsets;
  if (offsets.size() != targets + 1 || offsets.front() != 0 ||
      offsets.back() != std::ssize(scores.ids) || scores.ids.size() != scores.id_logprobs.size())
    return Failure{fmt::format("{} offsets, {} ids and {} log-probabilities of {} targets",
                               offsets.size(), scores.ids.size(), scores.id_logprobs.size(),
                               targets)};
  // All of them before any is used.
  for (size_t i = 0; i < targets; ++i)
    if (offsets[i + 1] <= offsets[i])
      return Failure{fmt::format("target {} has a support without tokens", i)};
  for (size_t i = 0; i < targets; ++i) {
    const auto support = support_of(scores, i);
    std::vector<TokenId> ids(support.begin(), support.end());
    std::ranges::sort(ids);
    if (ids.front() < 0 || ids.back() >= num_ids)
      return Failure{fmt::format("target {} has the ids {} to {}, and the student has {}", i,
                                 ids.front(), ids.back(), num_ids)};
    if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end())
      return Failure{fmt::format("target {} has the id {} twice", i, *twice)};
  }
  return {};
}

}  // namespace

Result<void> check_scores(const TeacherScores& scores, const DistillLossOptions& options,
                          size_t targets, int64_t num_ids) {
  if (scores.logprobs.size() != targets)
    return Failure{
        fmt::format("{} log-probabilities of {} targets", scores.logprobs.size(), targets)};
  for (const std::vector<float>* values :
       {&scores.logprobs, &scores.id_logprobs, &scores.behaviour})
    if (!are_logprobs(*values)) return Failure{"a number that is no logarithm of a probability"};
  if (options.kind == DistillLoss::kRefKl && scores.behaviour.size() != targets)
    return Failure{fmt::format("{} log-probabilities of the policy that sampled {} targets",
                               scores.behaviour.size(), targets)};
  return needs_support(options.kind) ? check_supports(scores, targets, num_ids) : Result<void>();
}

DistillationPass::DistillationPass(const Stream& stream, const PolicyTrainer& trainer,
                                   const DistillLossOptions& options,
                                   std::span<const PackedSequence> sequences,
                                   std::span<const TeacherScores> scores)
    : stream_(stream),
      trainer_(trainer),
      options_(options),
      sequences_(sequences),
      scores_(scores),
      memory_(static_cast<size_t>(bytes(trainer.model().config()))) {
  TR_CHECK(stream.device.kind == DeviceKind::kCpu, "a head of its own is on the CPU");
  TR_CHECK(options.kind != DistillLoss::kPolicyGradient, "policy_gradient has advantages");
  TR_CHECK(sequences.size() == scores.size(), "{} sequences, {} scores", sequences.size(),
           scores.size());
  size_t targets = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PackedSequence& s = sequences[i];
    targets += s.targets.size();
    TR_CHECK(s.kept.empty() && !s.targets.empty() && s.targets.back() < std::ssize(s.tokens));
    const auto usable =
        check_scores(scores[i], options, s.targets.size(), trainer.model().config().num_ids());
    TR_CHECK(usable.ok(), "sequence {}: {}", i, usable.failure().message);
  }
  weight_ = options.coef / static_cast<double>(targets);
}

int64_t DistillationPass::bytes(const ModelConfig& config) {
  Workspace need = Workspace::measuring();
  Scratch(need, config.num_ids());
  return static_cast<int64_t>(need.peak() +
                              linear_grad_workspace_bytes(rows_at_once(config.num_ids()),
                                                          config.num_ids(), config.hidden_size));
}

void DistillationPass::add_states(size_t begin, size_t end, ConstMatrix hidden, Matrix dhidden,
                                  Parameters& gradients) {
  const Weight head = trainer_.packed()->head();
  const Tensor dweight = head_gradient(trainer_.model(), gradients);
  for_rows(begin, end, hidden, [&](int64_t first, ConstMatrix x, Matrix z, Workspace& scratch) {
    linear_grad_input(stream_, scratch,
                      {.dy = z, .weight = head, .dx = dhidden.slice_rows(first, first + z.rows)});
    // The head of an adapter's base is frozen.
    if (dweight.rows > 0)
      linear_grad_weight(stream_, scratch,
                         {.dy = z, .x = x, .dweight = dweight, .weight = head.dtype});
  });
}

void DistillationPass::measure_states(size_t begin, size_t end, ConstMatrix hidden) {
  for_rows(begin, end, hidden, {});
}

void DistillationPass::for_rows(size_t begin, size_t end, ConstMatrix hidden,
                                const TakesRows& learns) {
  std::vector<Place> places;
  for (size_t i = begin; i < end; ++i)
    for (size_t k = 0; k < sequences_[i].targets.size(); ++k) places.push_back({i, k});
  TR_CHECK(std::ssize(places) == hidden.rows, "{} targets, {} states", places.size(), hidden.rows);
  const Weight head = trainer_.packed()->head();
  Workspace workspace(memory_);
  const Scratch scratch(workspace, head.out);
  const int64_t chunk = rows_at_once(head.out);
  for (int64_t first = 0; first < hidden.rows; first += chunk) {
    const int64_t rows = std::min(chunk, hidden.rows - first);
    const ConstMatrix x = hidden.slice_rows(first, first + rows);
    const Matrix z(scratch.logits.data(), rows, head.out);
    const auto lse = scratch.lse.first(static_cast<size_t>(rows));
    linear(stream_, {.x = x, .weight = head, .y = z});
    log_sum_exp(stream_,
                {.logits = z, .inv_temperature = sequences_[begin].inv_temperature, .lse = lse});
    // Slots come in the order of the sequences, and so do measurements.
    const size_t measured = measures_.size();
    measures_.resize(measured + static_cast<size_t>(rows));
    parallel_for(stream_, rows, 1, [&](int64_t from, int64_t to) {
      for (int64_t r = from; r < to; ++r) {
        beat();
        const auto i = static_cast<size_t>(r);
        measures_[measured + i] =
            measure(places[static_cast<size_t>(first + r)], lse[i],
                    {z.row(r), static_cast<size_t>(z.cols)}, learns != nullptr);
      }
    });
    if (learns) learns(first, x, z, workspace);
  }
}

double DistillationPass::student_logprob(const Place& place, float lse,
                                         std::span<const float> logits, TokenId id) const {
  return double{logits[static_cast<size_t>(id)]} *
             double{sequences_[place.sequence].inv_temperature} -
         double{lse};
}

DistillationPass::Measure DistillationPass::measure(const Place& place, float lse,
                                                    std::span<float> logits, bool learns) const {
  return needs_support(options_.kind) ? over_support(place, lse, logits, learns)
                                      : of_sampled(place, lse, logits, learns);
}

DistillationPass::Measure DistillationPass::over_support(const Place& place, float lse,
                                                         std::span<float> logits,
                                                         bool learns) const {
  const TeacherScores& scores = scores_[place.sequence];
  const auto ids = support_of(scores, place.target);
  const auto begin = static_cast<size_t>(scores.offsets[place.target]);
  std::vector<double> student, slopes(ids.size());
  for (const TokenId id : ids) student.push_back(student_logprob(place, lse, logits, id));
  const std::vector<double> teacher(
      scores.id_logprobs.begin() + static_cast<int64_t>(begin),
      scores.id_logprobs.begin() + static_cast<int64_t>(begin + ids.size()));
  const TokenLoss loss = distill_token(options_, student, teacher, slopes);
  const PackedSequence& sequence = sequences_[place.sequence];
  const TokenId target = sequence.tokens[static_cast<size_t>(sequence.targets[place.target])];
  Measure found = {.loss = loss.loss,
                   .teacher_kl = student_logprob(place, lse, logits, target) -
                                 double{scores.logprobs[place.target]},
                   .student_mass = loss.student_mass,
                   .teacher_mass = loss.teacher_mass};
  if (options_.support == SupportOf::kTeacher)
    found.overlap = overlap_ratio(ids, likeliest(logits, ids.size()));
  if (learns) finish_gradient(place, lse, ids, slopes, logits);
  return found;
}

DistillationPass::Measure DistillationPass::of_sampled(const Place& place, float lse,
                                                       std::span<float> logits, bool learns) const {
  const TeacherScores& scores = scores_[place.sequence];
  const PackedSequence& sequence = sequences_[place.sequence];
  const TokenId target = sequence.tokens[static_cast<size_t>(sequence.targets[place.target])];
  const SampledLogprobs logprobs = {
      .student = student_logprob(place, lse, logits, target),
      .teacher = scores.logprobs[place.target],
      .behaviour = scores.behaviour.empty() ? 0 : scores.behaviour[place.target]};
  const SampledLoss loss = distill_sampled(options_, logprobs);
  if (learns) finish_gradient(place, lse, {&target, 1}, {&loss.dstudent, 1}, logits);
  return {.loss = loss.loss, .teacher_kl = logprobs.student - logprobs.teacher};
}

// dlogits = inv_temperature * weight * sum over i of slopes[i] (onehot(ids[i]) - p), in the place
// of the logits.
void DistillationPass::finish_gradient(const Place& place, float lse, std::span<const TokenId> ids,
                                       std::span<const double> slopes,
                                       std::span<float> logits) const {
  const float inv_temperature = sequences_[place.sequence].inv_temperature;
  const double scale = weight_ * double{inv_temperature};
  double sum = 0;
  for (const double slope : slopes) sum += slope;
  const auto of_all = static_cast<float>(-scale * sum);
  for (float& z : logits) z = of_all * std::exp(z * inv_temperature - lse);
  for (size_t i = 0; i < ids.size(); ++i)
    logits[static_cast<size_t>(ids[i])] += static_cast<float>(scale * slopes[i]);
}

void DistillationPass::end(const GradientTree& tree) {
  measures_ = tree.gather_values(std::move(measures_));
}

MetricList DistillationPass::metrics(std::string_view prefix, std::string_view ratio) const {
  Measure sum;
  for (const Measure& m : measures_) {
    sum.loss += m.loss;
    sum.teacher_kl += m.teacher_kl;
    sum.student_mass += m.student_mass;
    sum.teacher_mass += m.teacher_mass;
    sum.overlap += m.overlap;
  }
  const auto n = static_cast<double>(measures_.size());
  MetricList metrics;
  const auto add = [&](std::string_view name, double total) {
    metrics.emplace_back(fmt::format("{}{}", prefix, name), total / n);
  };
  add("loss", sum.loss);
  add(ratio, sum.teacher_kl);
  if (!needs_support(options_.kind)) return metrics;
  add("student_mass", sum.student_mass);
  add("teacher_mass", sum.teacher_mass);
  if (options_.support == SupportOf::kTeacher) add("overlap_ratio", sum.overlap);
  return metrics;
}

}  // namespace tailrace
