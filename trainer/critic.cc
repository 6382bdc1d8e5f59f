#include "trainer/critic.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/model/safetensors.h"
#include "kernels/base/check.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/advantage.h"
#include "trainer/loss/value_loss.h"

namespace tailrace {
namespace {

// The constants of AdamW; it has no decay.
constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8;

// An update moves the means by this part, so that they forget in ten updates; the first ones are
// plain means.
constexpr double kMeanRate = 0.1;

size_t state_size(int64_t hidden_size) { return static_cast<size_t>(4 * hidden_size + 1); }
// Values in the sums of one slot.
size_t sums_size(int64_t hidden_size) { return static_cast<size_t>(2 * hidden_size + 4); }

// 1 - Var(R - V) / Var(R), of what the head said before the step; nothing where all returns are
// equal.
std::optional<double> explained_variance(const TrainBatch& batch) {
  std::vector<double> returns, errors;
  for (const TrainSequence& s : batch.sequences) {
    for (size_t k = 0; k < s.returns.size(); ++k) {
      if (!s.is_trained(k)) continue;
      returns.push_back(s.returns[k]);
      errors.push_back(double{s.returns[k]} - s.old_values[k]);
    }
  }
  const double whole = mean_std(returns).std, rest = mean_std(errors).std;
  if (whole == 0) return std::nullopt;
  return 1 - rest * rest / (whole * whole);
}

int64_t count_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  int64_t value = -1;
  if (found != file.metadata().end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) value = -1;
  }
  if (value < 0) throw UserError("{}: metadata has no valid '{}'", file.path().string(), key);
  return value;
}

}  // namespace

Critic::Critic(int64_t hidden_size, int64_t slots, const CriticOptions& options)
    : hidden_size_(hidden_size),
      slots_(slots),
      options_(options),
      state_memory_(Workspace::aligned(state_size(hidden_size) * sizeof(float))),
      sums_memory_(
          Workspace::aligned(static_cast<size_t>(slots) * sums_size(hidden_size) * sizeof(double))),
      state_(state_memory_.as<float>().first(state_size(hidden_size))),
      sums_(sums_memory_.as<double>().first(static_cast<size_t>(slots) * sums_size(hidden_size))) {
  const auto size = static_cast<size_t>(hidden_size);
  weight_ = state_.subspan(0, size);
  m_ = state_.subspan(size, size);
  v_ = state_.subspan(2 * size, size);
  mean_ = state_.subspan(3 * size, size);
  mean_return_ = state_.subspan(4 * size);
}

int64_t Critic::bytes(int64_t hidden_size, int64_t slots) {
  return static_cast<int64_t>(
      Workspace::aligned(state_size(hidden_size) * sizeof(float)) +
      Workspace::aligned(static_cast<size_t>(slots) * sums_size(hidden_size) * sizeof(double)));
}

std::vector<float> Critic::values(ConstMatrix hidden) const {
  TR_CHECK(hidden.cols == hidden_size_, "{} of {}", hidden.cols, hidden_size_);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(hidden.rows));
  for (int64_t row = 0; row < hidden.rows; ++row) {
    const float* h = hidden.row(row);
    // V(h) = mean return + w (h - mean h): about the running means, so that w learns differences
    // alone (critic.h).
    double sum = mean_return_[0];
    for (size_t i = 0; i < weight_.size(); ++i)
      sum += double{weight_[i]} * (double{h[i]} - mean_[i]);
    values.push_back(static_cast<float>(sum));
  }
  return values;
}

Critic::Sums::Sums(std::span<double> row)
    : d_state(row.first((row.size() - 4) / 2)),
      state(row.subspan(d_state.size(), d_state.size())),
      d(row[row.size() - 4]),
      returns(row[row.size() - 3]),
      tokens(row[row.size() - 2]),
      loss(row[row.size() - 1]) {}

void Critic::begin(const PolicyPass& pass) {
  std::ranges::fill(sums_, 0.0);
  pass_ = pass;
}

void Critic::add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output) {
  const std::span<const TrainSequence> sequences = pass_.sequences.subspan(begin, end - begin);
  std::vector<float> old_values, returns;
  std::vector<uint8_t> mask;
  for (const TrainSequence& s : sequences) {
    old_values.insert(old_values.end(), s.old_values.begin(), s.old_values.end());
    returns.insert(returns.end(), s.returns.begin(), s.returns.end());
    for (size_t k = 0; k < s.targets.size(); ++k) mask.push_back(s.is_trained(k));
  }
  const std::vector<float> now = values(output.hidden);
  std::vector<double> dvalue(now.size());
  const double loss =
      value_loss({.value = now, .old_value = old_values, .returns = returns, .mask = mask},
                 options_.value_clip, 1.0 / static_cast<double>(pass_.counts.tokens), dvalue);
  const size_t each = sums_size(hidden_size_);
  const Sums sums(sums_.subspan(slot * each, each));
  for (size_t row = 0; row < now.size(); ++row) {
    if (mask[row] == 0) continue;
    const float* h = output.hidden.row(static_cast<int64_t>(row));
    for (size_t i = 0; i < sums.state.size(); ++i) {
      sums.d_state[i] += dvalue[row] * h[i];
      sums.state[i] += h[i];
    }
    sums.d += dvalue[row];
    sums.returns += returns[row];
    sums.tokens += 1;
  }
  sums.loss += loss;
}

void Critic::end(const GradientTree& tree) { tree.gather_slots(sums_); }

void Critic::apply() {
  std::vector<double> row(sums_size(hidden_size_));
  // Slot by slot in their order, which no number of ranks changes.
  for (size_t i = 0; i < sums_.size(); ++i) row[i % row.size()] += sums_[i];
  const Sums total(row);
  const size_t size = weight_.size();
  ++updates_;
  ++reported_;
  loss_sum_ += total.loss;
  // Moved first: about the mean of its own states a batch has no gradient that all of them share.
  std::vector<double> mean(mean_.begin(), mean_.end()), gradient(size);
  const double part = std::max(kMeanRate, 1 / static_cast<double>(applied_ + 1));
  double squares = 0;
  for (size_t i = 0; i < size; ++i) {
    mean[i] += part * (total.state[i] / total.tokens - mean[i]);
    // dL/dw = sum of dv (h - mean) = sum of dv h - mean times sum of dv: the sums need no second
    // pass once the mean has moved.
    gradient[i] = total.d_state[i] - total.d * mean[i];
    squares += gradient[i] * gradient[i];
  }
  const double norm = std::sqrt(squares);
  norm_sum_ += norm;
  // As the optimizer of the policy does: an update that is not finite is skipped, and nothing has
  // moved.
  if (!std::isfinite(norm) || !std::isfinite(total.returns)) return;
  ++applied_;
  std::ranges::transform(mean, mean_.begin(), [](double x) { return static_cast<float>(x); });
  mean_return_[0] =
      static_cast<float>(mean_return_[0] + part * (total.returns / total.tokens - mean_return_[0]));
  const double scale =
      options_.max_grad_norm == 0 ? 1 : std::min(1.0, options_.max_grad_norm / (norm + 1e-6));
  const auto t = static_cast<double>(applied_);
  const double first = 1 - std::pow(kBeta1, t), second = 1 - std::pow(kBeta2, t);
  for (size_t i = 0; i < size; ++i) {
    const double g = gradient[i] * scale;
    m_[i] = static_cast<float>(kBeta1 * m_[i] + (1 - kBeta1) * g);
    v_[i] = static_cast<float>(kBeta2 * v_[i] + (1 - kBeta2) * g * g);
    weight_[i] = static_cast<float>(weight_[i] - options_.lr * (m_[i] / first) /
                                                     (std::sqrt(v_[i] / second) + kEps));
  }
}

MetricList Critic::take_metrics(const TrainBatch& batch) {
  if (reported_ == 0) return {};
  const auto n = static_cast<double>(reported_);
  MetricList metrics = {{"critic/value_loss", loss_sum_ / n},
                        {"critic/grad_norm", norm_sum_ / n},
                        {"critic/lr", options_.lr}};
  if (const auto explained = explained_variance(batch))
    metrics.emplace_back("critic/explained_variance", *explained);
  loss_sum_ = norm_sum_ = 0;
  reported_ = 0;
  return metrics;
}

void Critic::share(Collective& ranks) {
  std::array counts = {updates_, applied_};
  ranks.broadcast(std::as_writable_bytes(std::span(counts)));
  updates_ = counts[0];
  applied_ = counts[1];
  ranks.broadcast(std::as_writable_bytes(state_));
}

Digest Critic::digest() const {
  RunningDigest digest;
  const std::array counts = {updates_, applied_};
  digest.add(std::as_bytes(std::span(counts)));
  digest.add(std::as_bytes(state_));
  return digest.value();
}

std::vector<Critic::Tensor> Critic::tensors() const {
  return {{"critic.weight", weight_},
          {"m.critic.weight", m_},
          {"v.critic.weight", v_},
          {"critic.mean", mean_},
          {"critic.mean_return", mean_return_}};
}

void Critic::save(const std::filesystem::path& path) const {
  std::vector<NamedTensor> named;
  for (const Tensor& tensor : tensors())
    named.push_back({tensor.name,
                     {Dtype::kF32,
                      {static_cast<int64_t>(tensor.values.size())},
                      std::as_bytes(tensor.values)}});
  write_safetensors(path, named,
                    {{"updates", std::to_string(updates_)}, {"applied", std::to_string(applied_)}});
}

void Critic::load(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const int64_t updates = count_of(file, "updates"), applied = count_of(file, "applied");
  for (const Tensor& tensor : tensors()) {
    const auto found = file.tensors().find(tensor.name);
    if (found == file.tensors().end())
      throw UserError("{}: tensor {} is missing", path.string(), tensor.name);
    const TensorView& view = found->second;
    if (view.dtype != Dtype::kF32 ||
        view.shape != std::vector{static_cast<int64_t>(tensor.values.size())})
      throw UserError("{}: tensor {} does not fit the model; the file belongs to another one",
                      path.string(), tensor.name);
    to_float(view, tensor.values);
  }
  updates_ = updates;
  applied_ = applied;
}

}  // namespace tailrace
