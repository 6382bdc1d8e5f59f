#include "trainer/optimizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/safetensors.h"

namespace tailrace {

namespace {

// The bias of a choice of experts is moved by the balancer and has no gradient, so a decay would
// undo it.
bool decays(ParameterKind kind, bool decay_norms) {
  switch (kind) {
    case ParameterKind::kEmbedding:
    case ParameterKind::kMatrix:
    case ParameterKind::kResidual:
    case ParameterKind::kLowRankIn:
    case ParameterKind::kLowRankOut:
      return true;
    case ParameterKind::kNorm:
    case ParameterKind::kBias:
      return decay_norms;
    case ParameterKind::kChoice:
      return false;
  }
  return true;
}

bool is_hidden_matrix(const ParameterInfo& info) {
  using enum ParameterKind;
  // The head is a matrix too, but its rows are words: Muon's orthogonal update is for hidden layers
  // (embeddings have a kind of their own).
  return (info.kind == kMatrix || info.kind == kResidual) && info.name != kHeadName;
}

}  // namespace

double learning_rate(const OptimOptions& options, int64_t update, double done, double warm_up_end) {
  if (update < options.warmup_updates)
    return options.lr * static_cast<double>(update) / static_cast<double>(options.warmup_updates);
  // The last update of the warm-up has the whole rate, whatever share of the run it took.
  if (options.schedule == LrSchedule::kConstant || update == options.warmup_updates)
    return options.lr;
  const double fallen =
      done > warm_up_end ? std::min(1.0, (done - warm_up_end) / (1 - warm_up_end)) : 0;
  const double low = options.min_lr_ratio;
  const double fall = options.schedule == LrSchedule::kLinear
                          ? low + (1 - low) * (1 - fallen)
                          : low + (1 - low) * ((1 + std::cos(std::numbers::pi * fallen)) / 2);
  return options.lr * fall;
}

namespace {

auto on(Device device, auto values) {
  auto bytes = bytes_of(values);
  bytes.device = device;
  return bytes;
}

// One behind the other.
size_t small_bytes(int64_t states, int64_t rates, int64_t squares = 0) {
  return Workspace::aligned(static_cast<size_t>(states) * sizeof(UpdateState)) +
         Workspace::aligned(static_cast<size_t>(rates) * sizeof(float)) +
         Workspace::aligned(static_cast<size_t>(squares) * sizeof(double));
}
int64_t num_squares(Device device) { return device.kind == DeviceKind::kCpu ? 0 : kSquaresBlocks; }

}  // namespace

Optimizer::Division::Division(const ParameterLayout& layout, OptimizerKind kind, bool decay_norms) {
  constexpr int64_t kAlignment = kMemoryAlignment / sizeof(float);
  bool joins = false;  // the entry before this one is AdamW's too
  for (const ParameterInfo& info : layout.entries()) {
    if (kind == OptimizerKind::kMuon && is_hidden_matrix(info)) {
      const int64_t cols = info.shape.back();
      // A fused stack has gate and up of an expert as one matrix.
      int64_t rows = info.shape[info.shape.size() - 2];
      if (info.name.ends_with(kFusedExpertsName)) rows /= 2;
      for (int64_t begin = info.offset; begin < info.offset + info.size; begin += rows * cols)
        matrices.push_back({begin, rows, cols});
      scratch_bytes = std::max(scratch_bytes, muon_workspace_bytes(rows, cols));
      seconds.push_back(-1);
      joins = false;
      continue;
    }
    const bool decay = decays(info.kind, decay_norms);
    // One call of adamw() for all neighbours that share a decay; padding between them is 0 and
    // stays so.
    if (!joins || ranges.back().decays != decay) {
      num_seconds = (num_seconds + kAlignment - 1) / kAlignment * kAlignment;
      ranges.push_back({info.offset, info.offset, num_seconds, decay});
    }
    Range& range = ranges.back();
    range.end = info.offset + info.size;
    seconds.push_back(range.second + info.offset - range.begin);
    num_seconds = range.second + range.end - range.begin;
    joins = true;
  }
}

Optimizer::Optimizer(const Stream& stream, const ParameterLayout& layout,
                     const OptimOptions& options)
    : stream_(stream),
      options_(options),
      division_(layout, options.kind, options.decay_norms),
      m_(layout, stream.device),
      v_(static_cast<size_t>(division_.num_seconds) * sizeof(float), stream.device),
      scratch_(division_.scratch_bytes),
      device_(small_bytes(1, kPending * kPending, num_squares(stream.device)), stream.device),
      host_(Buffer::pinned(small_bytes(kPending, kPending * kPending), stream.device)) {
  Workspace device(device_), host(host_);
  state_ = device.take<UpdateState>(1);
  rates_ = device.take<float>(kPending * kPending);
  squares_ = device.take<double>(num_squares(stream.device));
  pending_states_ = host.take<UpdateState>(kPending);
  sent_rates_ = host.take<float>(kPending * kPending);
  set_counts(0, 0);
  set_warm_up_end({});
}

int64_t Optimizer::bytes(const ParameterLayout& layout, OptimizerKind kind, Device device) {
  const Division division(layout, kind, /*decay_norms=*/false);
  return Parameters::bytes(layout) +
         static_cast<int64_t>(
             Workspace::aligned(static_cast<size_t>(division.num_seconds) * sizeof(float)) +
             division.scratch_bytes + small_bytes(1, kPending * kPending, num_squares(device)) +
             small_bytes(kPending, kPending * kPending));
}

void Optimizer::apply(const Parameters& gradients, Parameters& parameters, double done) {
  // The host runs ahead of the device by kPending updates at most, for which it has places.
  if (pending_ == kPending) settle();
  const std::span<const float> rates = send_rates(done);
  sum_of_squares(
      stream_,
      {.x = gradients.values(), .sum = {&state_.data()->sum_of_squares, 1}, .scratch = squares_});
  begin_update(stream_, {.state = state_,
                         .rates = rates,
                         .first_rate = first_rate_,
                         .max_grad_norm = options_.max_grad_norm});
  AdamWConstants constants{.beta1 = static_cast<float>(options_.betas[0]),
                           .beta2 = static_cast<float>(options_.betas[1]),
                           .eps = static_cast<float>(options_.eps)};
  const auto weight_decay = static_cast<float>(options_.weight_decay);
  for (const Range& range : division_.ranges) {
    constants.weight_decay = range.decays ? weight_decay : 0.0f;
    auto begin = static_cast<size_t>(range.begin),
         size = static_cast<size_t>(range.end - range.begin);
    adamw(stream_, {.state = state_,
                    .constants = constants,
                    .parameters = parameters.values().subspan(begin, size),
                    .gradients = gradients.values().subspan(begin, size),
                    .m = m_.values().subspan(begin, size),
                    .v = second_moments().subspan(static_cast<size_t>(range.second), size)});
  }
  Workspace scratch(scratch_);
  for (const Place& place : division_.matrices) {
    const auto matrix = [&](auto flat) {
      return MatrixView(flat.data() + place.begin, place.rows, place.cols);
    };
    muon(stream_, scratch,
         {.state = state_,
          .constants = {.momentum = static_cast<float>(options_.momentum),
                        .weight_decay = weight_decay},
          .parameters = matrix(parameters.values()),
          .gradients = matrix(gradients.values()),
          .momentum = matrix(m_.values())});
  }
  // Read when somebody asks, by settle(): whether an update was skipped is known on the device
  // alone.
  copy(stream_, bytes_of(pending_states_.subspan(static_cast<size_t>(pending_), 1)),
       on(stream_.device, state_));
  pending_done_.push_back(done);
  ++pending_;
  ++tries_;
}

// Waits for the updates that are pending and makes their reports.
void Optimizer::settle() {
  if (pending_ == 0) return;
  wait(stream_);
  warm_up_end_ = warm_up_end();
  for (size_t i = 0; i < static_cast<size_t>(pending_); ++i) {
    const UpdateState& state = pending_states_[i];
    last_ = {.grad_norm = state.grad_norm, .skipped = state.skips};
    // Not the float that was used: a report is of the schedule.
    if (!state.skips)
      last_.lr = learning_rate(options_, state.updates, pending_done_[i], warm_up_end_.value_or(1));
    reports_.push_back(last_);
    first_rate_ = state.updates + 1;
  }
  pending_ = 0;
  pending_done_.clear();
}

std::optional<double> Optimizer::warm_up_end() const {
  for (size_t i = 0; i < static_cast<size_t>(pending_); ++i) {
    const UpdateState& state = pending_states_[i];
    if (!state.skips && state.updates == first_behind()) return pending_done_[i];
  }
  return warm_up_end_;
}

// Options may have another warm-up than those that the state was saved with.
void Optimizer::set_warm_up_end(std::optional<double> end) {
  warm_up_end_ = first_rate_ > first_behind() ? end : std::nullopt;
}

// Rates that the next update may have, by the number that it turns out to be. Each of the others
// that are under way has a row of its own.
std::span<const float> Optimizer::send_rates(double done) {
  if (options_.schedule != LrSchedule::kConstant && !warm_up_end_) {
    if (first_rate_ + pending_ > first_behind()) settle();
    if (!warm_up_end_ && first_rate_ > first_behind())
      warm_up_end_ = done * static_cast<double>(options_.warmup_updates) /
                     static_cast<double>(first_rate_ - 1);
  }
  const auto begin = static_cast<size_t>(pending_ * kPending);
  // Behind the warm-up they are all the same, as is the whole rate of its last update and the next.
  const int64_t rising = std::max<int64_t>(0, options_.warmup_updates - first_rate_);
  const auto count = static_cast<size_t>(std::min(pending_, rising) + 1);
  const std::span<float> sent = sent_rates_.subspan(begin, count),
                         rates = rates_.subspan(begin, count);
  int64_t update = first_rate_;
  for (float& rate : sent)
    rate = static_cast<float>(learning_rate(options_, update++, done, warm_up_end_.value_or(done)));
  copy(stream_, on(stream_.device, rates), bytes_of(sent));
  return rates;
}

std::vector<Optimizer::Report> Optimizer::take_reports() {
  settle();
  return std::exchange(reports_, {});
}

Optimizer::Report Optimizer::last_report() {
  settle();
  return last_;
}

// Floats of the device as the host reads them: where they lie on the CPU, else in `copy`.
template <class Float>
std::span<Float> Optimizer::staged(std::span<Float> values, std::vector<float>& copy) const {
  if (stream_.device.kind == DeviceKind::kCpu) return values;
  copy.resize(values.size());
  tailrace::copy(stream_, bytes_of(std::span(copy)), on(stream_.device, values));
  wait(stream_);
  return copy;
}

// Copies the memory of staged() back to where it came from, where that is another place.
void Optimizer::send(std::span<const float> host, std::span<float> values) const {
  if (stream_.device.kind == DeviceKind::kCpu) return;
  copy(stream_, on(stream_.device, values), bytes_of(host));
  wait(stream_);
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
  pending_done_.clear();
  reports_.clear();
  tries_ = updates + skipped;
  first_rate_ = updates + 1;
}

void Optimizer::share(Collective& ranks) {
  const UpdateState own = state();
  const std::optional<double> own_end = warm_up_end();
  std::array<int64_t, 4> counts = {own.updates, own.skipped, own_end.has_value(),
                                   std::bit_cast<int64_t>(own_end.value_or(0))};
  ranks.broadcast(std::as_writable_bytes(std::span(counts)));
  set_counts(counts[0], counts[1]);
  set_warm_up_end(counts[2] != 0 ? std::optional(std::bit_cast<double>(counts[3])) : std::nullopt);
  for (const std::span<float> moments : {m_.values(), second_moments()}) {
    std::vector<float> copy;
    const std::span<float> on_host = staged(moments, copy);
    ranks.broadcast(std::as_writable_bytes(on_host));
    send(on_host, moments);
  }
}

namespace {

constexpr std::string_view kFirst = "m.", kSecond = "v.";
constexpr const char *kKindKey = "kind", *kWarmUpEndKey = "warm_up_end";

void extract(const SafetensorsFile& file, std::string_view prefix, const ParameterInfo& info,
             std::span<float> moments) {
  const std::string name = std::string(prefix) + info.name;
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end())
    throw UserError("{}: tensor {} is missing", file.path().string(), name);
  const TensorView& view = found->second;
  if (view.dtype != Dtype::kF32 || view.shape != info.shape) {
    throw UserError("{}: tensor {} does not fit the model; the file belongs to another one",
                    file.path().string(), name);
  }
  to_float(view, moments);
}

// Each tensor of the file, in its order: visit(prefix, entry, its part of the moments). `seconds`
// says where second moments begin; -1: an entry has none.
template <class Float, class Visit>
void for_each_moment(const ParameterLayout& layout, std::span<const int64_t> seconds,
                     std::span<Float> m, std::span<Float> v, const Visit& visit) {
  const std::vector<ParameterInfo>& entries = layout.entries();
  for (const ParameterInfo& info : entries)
    visit(kFirst, info,
          m.subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.size)));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (seconds[i] < 0) continue;
    visit(kSecond, entries[i],
          v.subspan(static_cast<size_t>(seconds[i]), static_cast<size_t>(entries[i].size)));
  }
}

// Files of before there was a second kind do not say it.
void check_kind(const SafetensorsFile& file, OptimizerKind kind) {
  const auto found = file.metadata().find(kKindKey);
  const std::string_view theirs = found == file.metadata().end() ? name_of(OptimizerKind::kAdamW)
                                                                 : std::string_view(found->second);
  if (theirs != name_of(kind))
    throw UserError(
        "{}: it holds what optim.kind={} wrote, and this run has {}. Go on with that "
        "kind, or start a new run directory from the checkpoint (model.path).",
        file.path().string(), theirs, name_of(kind));
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

// Files of earlier builds, and those of a warm-up that goes on, do not say it.
std::optional<double> read_warm_up_end(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kWarmUpEndKey);
  if (found == file.metadata().end()) return {};
  const std::string& text = found->second;
  double share = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc{} || end != text.data() + text.size() || !(share >= 0 && share <= 1))
    throw UserError("{}: metadata '{}' is \"{}\" and must be a share of the run, 0 to 1",
                    file.path().string(), kWarmUpEndKey, text);
  return share;
}

}  // namespace

void Optimizer::save(const std::filesystem::path& path) const {
  std::vector<NamedTensor> tensors;
  std::vector<float> m_copy, v_copy;
  const UpdateState counts = state();
  // Before the first update all moments are 0, and load() makes them so without a file of that
  // size.
  if (counts.updates > 0) {
    const std::span<const float> m = staged(m_.values(), m_copy),
                                 v = staged(second_moments(), v_copy);
    for_each_moment(m_.layout(), division_.seconds, m, v,
                    [&](std::string_view prefix, const ParameterInfo& info, auto moments) {
                      tensors.push_back({std::string(prefix) + info.name,
                                         {Dtype::kF32, info.shape, std::as_bytes(moments)}});
                    });
  }
  std::map<std::string, std::string> metadata = {{kKindKey, std::string(name_of(options_.kind))},
                                                 {"updates", std::to_string(counts.updates)},
                                                 {"skipped", std::to_string(counts.skipped)}};
  if (const std::optional<double> end = warm_up_end();
      end && (*end > 0 || options_.warmup_updates > 0))
    metadata[kWarmUpEndKey] = fmt::format("{}", *end);  // reads back as the same bits
  write_safetensors(path, tensors, metadata);
}

void Optimizer::load(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  check_kind(file, options_.kind);
  int64_t updates = read_count(file, "updates"), skipped = read_count(file, "skipped");
  const std::optional<double> end = read_warm_up_end(file);
  std::vector<float> m_copy, v_copy;
  const std::span<float> m = staged(m_.values(), m_copy), v = staged(second_moments(), v_copy);
  if (updates == 0 && file.tensors().empty()) {
    std::ranges::fill(m, 0.0f);
    std::ranges::fill(v, 0.0f);
  } else {
    for_each_moment(m_.layout(), division_.seconds, m, v,
                    [&](std::string_view prefix, const ParameterInfo& info, auto moments) {
                      extract(file, prefix, info, moments);
                    });
  }
  send(m, m_.values());
  send(v, second_moments());
  set_counts(updates, skipped);
  set_warm_up_end(end);
}

}  // namespace tailrace
