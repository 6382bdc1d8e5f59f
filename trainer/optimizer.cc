#include "trainer/optimizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "core/base/error.h"
#include "core/model/safetensors.h"

namespace tailrace {

namespace {

bool decays(ParameterKind kind, const OptimOptions& options) {
  switch (kind) {
    case ParameterKind::kEmbedding:
    case ParameterKind::kMatrix:
    case ParameterKind::kResidual:
    case ParameterKind::kLowRankIn:
    case ParameterKind::kLowRankOut:
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

namespace {

DeviceBytes on(Device device, auto values) {
  DeviceBytes bytes = bytes_of(values);
  bytes.device = device;
  return bytes;
}

// One behind the other.
size_t small_bytes(int64_t states, int64_t rates) {
  return Workspace::aligned(static_cast<size_t>(states) * sizeof(UpdateState)) +
         Workspace::aligned(static_cast<size_t>(rates) * sizeof(float));
}

}  // namespace

Optimizer::Optimizer(const Stream& stream, const ParameterLayout& layout,
                     const OptimOptions& options, int64_t total_updates)
    : stream_(stream),
      options_(options),
      total_updates_(total_updates),
      m_(layout),
      v_(layout),
      device_(small_bytes(1, kPending), stream.device),
      host_(Buffer::pinned(small_bytes(kPending, kPending), stream.device)) {
  for (const ParameterInfo& info : layout.entries()) {
    bool decay = decays(info.kind, options);
    // One call of adamw() for all neighbours that share a decay; padding between them is 0 and
    // stays so.
    if (ranges_.empty() || ranges_.back().decays != decay)
      ranges_.push_back({info.offset, info.offset, decay});
    ranges_.back().end = info.offset + info.size;
  }
  Workspace device(device_), host(host_);
  state_ = device.take<UpdateState>(1);
  rates_ = device.take<float>(kPending);
  pending_states_ = host.take<UpdateState>(kPending);
  sent_rates_ = host.take<float>(kPending);
  set_counts(0, 0);
}

int64_t Optimizer::bytes(const ParameterLayout& layout) {
  return 2 * Parameters::bytes(layout) +
         static_cast<int64_t>(small_bytes(1, kPending) + small_bytes(kPending, kPending));
}

void Optimizer::apply(const Parameters& gradients, Parameters& parameters) {
  if (pending_ == kPending) settle();
  sum_of_squares(stream_, {.x = gradients.flat(), .sum = {&state_.data()->sum_of_squares, 1}});
  begin_update(stream_, {.state = state_,
                         .rates = rates_,
                         .first_rate = first_rate_,
                         .max_grad_norm = options_.max_grad_norm});
  AdamWConstants constants{.beta1 = static_cast<float>(options_.betas[0]),
                           .beta2 = static_cast<float>(options_.betas[1]),
                           .eps = static_cast<float>(options_.eps)};
  for (const Range& range : ranges_) {
    constants.weight_decay = range.decays ? static_cast<float>(options_.weight_decay) : 0.0f;
    auto begin = static_cast<size_t>(range.begin),
         size = static_cast<size_t>(range.end - range.begin);
    adamw(stream_, {.state = state_,
                    .constants = constants,
                    .parameters = parameters.flat().subspan(begin, size),
                    .gradients = gradients.flat().subspan(begin, size),
                    .m = m_.flat().subspan(begin, size),
                    .v = v_.flat().subspan(begin, size)});
  }
  copy(stream_, bytes_of(pending_states_.subspan(static_cast<size_t>(pending_), 1)),
       on(stream_.device, state_));
  ++pending_;
  ++tries_;
}

// Waits for the updates that are pending and makes their reports.
void Optimizer::settle() {
  if (pending_ == 0) return;
  wait(stream_);
  for (const UpdateState& state : pending_states_.first(static_cast<size_t>(pending_))) {
    last_ = {.grad_norm = state.grad_norm, .skipped = state.skips};
    // Not the float that was used: a report is of the schedule.
    if (!state.skips) last_.lr = learning_rate(options_, state.updates, total_updates_);
    reports_.push_back(last_);
    first_rate_ = state.updates + 1;
  }
  pending_ = 0;
  send_rates();
}

// Nothing is under way that reads the rates, or sends them.
void Optimizer::send_rates() {
  int64_t update = first_rate_;
  for (float& rate : sent_rates_)
    rate = static_cast<float>(learning_rate(options_, update++, total_updates_));
  copy(stream_, on(stream_.device, rates_), bytes_of(sent_rates_));
}

std::vector<Optimizer::Report> Optimizer::take_reports() {
  settle();
  return std::exchange(reports_, {});
}

Optimizer::Report Optimizer::last_report() {
  settle();
  return last_;
}

UpdateState Optimizer::state() const {
  UpdateState state;
  copy(stream_, bytes_of(std::span(&state, 1)), on(stream_.device, state_));
  wait(stream_);
  return state;
}

void Optimizer::set_counts(int64_t updates, int64_t skipped) {
  UpdateState state{.updates = updates, .skipped = skipped};
  copy(stream_, on(stream_.device, state_), bytes_of(std::span(&state, 1)));
  wait(stream_);
  pending_ = 0;
  reports_.clear();
  tries_ = updates + skipped;
  first_rate_ = updates + 1;
  send_rates();
}

void Optimizer::share(Collective& ranks) {
  const UpdateState own = state();
  std::array<int64_t, 2> counts = {own.updates, own.skipped};
  ranks.broadcast(std::as_writable_bytes(std::span(counts)));
  set_counts(counts[0], counts[1]);
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
  const UpdateState counts = state();
  write_safetensors(
      path, tensors,
      {{"updates", std::to_string(counts.updates)}, {"skipped", std::to_string(counts.skipped)}});
}

void Optimizer::load(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  int64_t updates = read_count(file, "updates"), skipped = read_count(file, "skipped");
  extract(file, kFirst, m_);
  extract(file, kSecond, v_);
  set_counts(updates, skipped);
}

}  // namespace tailrace
