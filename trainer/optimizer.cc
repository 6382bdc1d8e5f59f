#include "trainer/optimizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/base/error.h"
#include "core/model/safetensors.h"
#include "kernels/ops/adamw.h"

namespace tailrace {

namespace {

bool decays(ParameterKind kind, const OptimOptions& options) {
  switch (kind) {
    case ParameterKind::kEmbedding:
    case ParameterKind::kMatrix:
    case ParameterKind::kResidual:
      return true;
    case ParameterKind::kNorm:
    case ParameterKind::kBias:
      return options.decay_norms;
    case ParameterKind::kChoice:
      return false;
  }
  return true;
}

}  // namespace

double learning_rate(const OptimOptions& options, int64_t update, int64_t total_updates) {
  if (update < options.warmup_updates) {
    return options.lr * static_cast<double>(update) / static_cast<double>(options.warmup_updates);
  }
  // At least 1, so that a run that ends within its warm-up divides by something.
  double span = static_cast<double>(std::max<int64_t>(1, total_updates - options.warmup_updates));
  double done = std::min(1.0, static_cast<double>(update - options.warmup_updates) / span);
  double low = options.lr * options.min_lr_ratio;
  switch (options.schedule) {
    case LrSchedule::kConstant:
      break;
    case LrSchedule::kLinear:
      return low + (options.lr - low) * (1 - done);
    case LrSchedule::kCosine:
      return low + (options.lr - low) * ((1 + std::cos(std::numbers::pi * done)) / 2);
  }
  return options.lr;
}

Optimizer::Optimizer(const ParameterLayout& layout, const OptimOptions& options,
                     int64_t total_updates)
    : options_(options), total_updates_(total_updates), m_(layout), v_(layout) {
  for (const ParameterInfo& info : layout.entries()) {
    bool decay = decays(info.kind, options);
    // One call of adamw() for all neighbours that share a decay; padding between them is 0 and
    // stays so.
    if (ranges_.empty() || ranges_.back().decays != decay)
      ranges_.push_back({info.offset, info.offset, decay});
    ranges_.back().end = info.offset + info.size;
  }
}

Optimizer::Report Optimizer::apply(const Stream& stream, const Parameters& gradients,
                                   Parameters& parameters) {
  Report report;
  double squares = 0;
  sum_of_squares(stream, {.x = gradients.flat(), .sum = {&squares, 1}});
  report.grad_norm = std::sqrt(squares);
  // Squares of finite floats cannot overflow a double sum: a bad norm means a bad gradient.
  if (!std::isfinite(report.grad_norm)) {
    report.skipped = true;
    ++skipped_;
    return report;
  }
  // Skipped updates do not count: the moments have not seen them, and the bias correction is
  // theirs.
  ++updates_;
  report.lr = learning_rate(options_, updates_, total_updates_);
  AdamWStep step{.lr = static_cast<float>(report.lr),
                 .beta1 = static_cast<float>(options_.betas[0]),
                 .beta2 = static_cast<float>(options_.betas[1]),
                 .eps = static_cast<float>(options_.eps),
                 .step = updates_};
  if (options_.max_grad_norm > 0) {
    // The 1e-6 is that of PyTorch's clip_grad_norm_, which the golden updates were made with.
    step.grad_scale =
        static_cast<float>(std::min(1.0, options_.max_grad_norm / (report.grad_norm + 1e-6)));
  }
  for (const Range& range : ranges_) {
    step.weight_decay = range.decays ? static_cast<float>(options_.weight_decay) : 0.0f;
    auto begin = static_cast<size_t>(range.begin),
         size = static_cast<size_t>(range.end - range.begin);
    adamw(stream, {.step = step,
                   .parameters = parameters.flat().subspan(begin, size),
                   .gradients = gradients.flat().subspan(begin, size),
                   .m = m_.flat().subspan(begin, size),
                   .v = v_.flat().subspan(begin, size)});
  }
  return report;
}

void Optimizer::share(Collective& ranks) {
  std::array<int64_t, 2> counts = {updates_, skipped_};
  ranks.broadcast(std::as_writable_bytes(std::span(counts)));
  updates_ = counts[0];
  skipped_ = counts[1];
  for (Parameters* moments : {&m_, &v_}) ranks.broadcast(std::as_writable_bytes(moments->flat()));
}

namespace {

constexpr std::string_view kFirst = "m.", kSecond = "v.";

void append(std::vector<NamedTensor>& tensors, std::string_view prefix, const Parameters& moments) {
  for (const ParameterInfo& info : moments.layout().entries()) {
    auto values =
        moments.flat().subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.size));
    tensors.push_back(
        {std::string(prefix) + info.name, {Dtype::kF32, info.shape, std::as_bytes(values)}});
  }
}

void extract(const SafetensorsFile& file, std::string_view prefix, Parameters& moments) {
  for (const ParameterInfo& info : moments.layout().entries()) {
    std::string name = std::string(prefix) + info.name;
    auto found = file.tensors().find(name);
    if (found == file.tensors().end())
      throw UserError("{}: tensor {} is missing", file.path().string(), name);
    const TensorView& view = found->second;
    if (view.dtype != Dtype::kF32 || view.shape != info.shape) {
      throw UserError("{}: tensor {} does not fit the model; the file belongs to another one",
                      file.path().string(), name);
    }
    to_float(view, moments.flat().subspan(static_cast<size_t>(info.offset),
                                          static_cast<size_t>(info.size)));
  }
}

int64_t read_count(const SafetensorsFile& file, const std::string& key) {
  auto found = file.metadata().find(key);
  int64_t value = -1;
  if (found != file.metadata().end()) {
    const std::string& text = found->second;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) value = -1;
  }
  if (value < 0) throw UserError("{}: metadata has no valid '{}'", file.path().string(), key);
  return value;
}

}  // namespace

void Optimizer::save(const std::filesystem::path& path) const {
  std::vector<NamedTensor> tensors;
  append(tensors, kFirst, m_);
  append(tensors, kSecond, v_);
  write_safetensors(path, tensors,
                    {{"updates", std::to_string(updates_)}, {"skipped", std::to_string(skipped_)}});
}

void Optimizer::load(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  int64_t updates = read_count(file, "updates"), skipped = read_count(file, "skipped");
  extract(file, kFirst, m_);
  extract(file, kSecond, v_);
  updates_ = updates;
  skipped_ = skipped;
}

}  // namespace tailrace
