#include "rollout/worker/weight_stage.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/clock.h"
#include "core/weights/live_digest.h"
#include "core/weights/proved_weights.h"
#include "kernels/base/check.h"
#include "kernels/base/memory.h"
#include "kernels/base/pulse.h"

namespace tailrace {

using namespace std::chrono_literals;

WeightStage::WeightStage(const ModelConfig& config, Dtype dtype, const Stream& stream,
                         Options options)
    : layout_(ParameterLayout::trained(config)),
      stream_(stream),
      beside_(stream.device),
      options_(std::move(options)) {
  if (options_.shared) {
    packed_ = spare_ = options_.shared;
    return;
  }
  const auto buffer = [&](int64_t bytes) {
    return Buffer(static_cast<size_t>(bytes), stream.device);
  };
  for (auto* weights : {&packed_, &spare_}) {
    *weights = config.lora
                   ? std::make_shared<PackedWeights>(
                         options_.base.weights, config,
                         buffer(PackedWeights::adapter_bytes(config, stream.device)))
                   : std::make_shared<PackedWeights>(
                         config, dtype, buffer(PackedWeights::bytes(config, dtype, stream.device)));
  }
}

WeightStage::~WeightStage() { stop_.request_stop(); }

int64_t WeightStage::bytes(const ModelConfig& config, Dtype dtype, Device device) {
  const int64_t weights = PackedWeights::bytes(config, dtype, device);
  return config.lora ? weights + 2 * PackedWeights::adapter_bytes(config, device) : 2 * weights;
}

void WeightStage::ask(WeightVersion version, std::string manifest) {
  // A version that is on its way may have taken minutes already.
  if (staging_ && staging_->version.root != version.root) stop_.request_stop();
  wish_ = {std::move(version), std::move(manifest)};
  // An order to switch to what was asked for before this is void.
  order_.reset();
}

void WeightStage::order_switch(WeightVersion version) {
  order_ = std::move(version);
  ordered_ = steady_now();
}

void WeightStage::overwritten() {
  packed_root_.reset();
  installed_root_.reset();
  installed_version_ = -1;
}

void WeightStage::forget() {
  wish_.reset();
  order_.reset();
}

std::optional<WeightStage::Staged> WeightStage::poll(bool samples) {
  if (staging_) {
    auto answer = finish(samples);
    if (staging_ || !wish_) return answer;
  }
  if (!wish_) return std::nullopt;
  const Wish wish = *std::exchange(wish_, std::nullopt);
  // Asked for once more in a new session, it may be what is in hand, or what samples behind
  // something newer that was staged: then nothing is read.
  if (installed_root_ == wish.version.root) {
    if (packed_ != installed_) std::swap(packed_, spare_);
    packed_root_ = installed_root_;
  }
  if (packed_root_ == wish.version.root) return Staged{wish.version};
  begin(wish, samples);
  return finish(samples);
}

std::optional<WeightStage::Switched> WeightStage::poll_switch(bool may_change) {
  if (!order_ || staging_) return std::nullopt;
  // An order that would change nothing waits for nothing, and drops no KV.
  const bool changes = installed_version_ != order_->version || installed_ != packed_;
  const bool is_staged = packed_root_ == order_->root;
  if (is_staged && changes && !may_change) return std::nullopt;
  Switched answer{.version = *std::exchange(order_, std::nullopt), .ordered = ordered_};
  if (!is_staged) {
    answer.failure = Failure{"other weights are staged"};
  } else if (changes) {
    answer.weights = installed_ = packed_;
    installed_root_ = packed_root_;
    installed_version_ = answer.version.version;
  }
  return answer;
}

void WeightStage::begin(const Wish& wish, bool samples) {
  staging_ = wish;
  packed_root_.reset();
  // A version that was staged and never sampled makes room.
  if (packed_ != installed_) std::swap(packed_, spare_);
  stop_ = std::stop_source();
  bytes_ = total_ = 0;
  // Where nothing samples the work is deferred: finish() does it on this thread and the engine's
  // stream, whose cores are idle. Else it runs beside, on a stream of its own.
  const bool beside = samples || options_.fetch_takes_long;
  result_ = std::async(beside ? std::launch::async : std::launch::deferred,
                       [this, wish, beside, stop = stop_.get_token(), pulse = bound_pulse()] {
                         const PulseScope scope(pulse);
                         return stage(wish, stop, beside ? beside_.get() : stream_);
                       });
}

std::optional<WeightStage::Progress> WeightStage::progress() const {
  if (!staging_) return std::nullopt;
  const int64_t bytes = bytes_;
  return Progress{staging_->version, bytes, std::max<int64_t>(total_, bytes)};
}

// Until it has ended nobody else touches spare_.
WeightStage::Outcome WeightStage::stage(const Wish& wish, const std::stop_token& stop,
                                        const Stream& stream) {
  const Outcome superseded{Failure{"another version was asked for"}};
  if (options_.shared && !options_.shared_holds(wish.version.root))
    return {Failure{"the trainer that has the weights holds another version: it has begun again"},
            InstallCause::kSource};
  auto fetched = options_.fetch(
      {.manifest = wish.manifest,
       .root = wish.version.root,
       .stop = stop,
       .on_progress = [this, last = int64_t{0}](int64_t bytes, int64_t total) mutable {
         // Another source may begin anew: what moves is progress.
         if (bytes != last) bytes_ += bytes > last ? bytes - last : 1;
         last = bytes;
         total_ = total;
       }});
  if (stop.stop_requested()) return superseded;
  if (!fetched) return {fetched.failure(), InstallCause::kSource};
  const Time start = steady_now();
  // Reading, packing and proving bring no bytes and still are progress: the scheduler's deadline
  // counts from when the bytes have last grown (law 9.7).
  ++bytes_;
  const std::filesystem::path& file = fetched.value().manifest;
  const auto version = prove_weights(file, wish.version.root, layout_);
  std::error_code ignored;
  if (!version && !std::filesystem::exists(file, ignored))
    return {version.failure(), InstallCause::kSource};  // let go in between
  if (!version) return {version.failure(), InstallCause::kDigest};
  if (version.value().base() != options_.base.root)
    return {Failure{fmt::format(
        "{}: it goes with a base of the root {}, and the one here has {}: the files of model.path "
        "differ from those that the trainer has read",
        file.string(), version.value().base(), options_.base.root)}};
  if (stop.stop_requested()) return superseded;
  ++bytes_;
  if (!options_.shared) {
    // Into the memory of the version before the one that samples, which nobody uses any more.
    TR_CHECK(spare_.use_count() == 1, "{} others use the spare weights", spare_.use_count() - 1);
    spare_->repack(stream, [&](std::string_view name) { return version.value().values(name); });
  }
  ++bytes_;
  if (options_.on_packed) options_.on_packed(*spare_);
  auto live = prove_packed(stream, *spare_, version.value());
  if (!live)
    return {Failure{fmt::format("{}: {}", file.string(), live.failure().message)},
            InstallCause::kDigest};
  MetricList metrics = std::move(fetched.value().metrics);
  metrics.emplace_back("stage_ms", 1e3 * seconds_of(steady_now() - start));
  return {std::move(live), InstallCause::kOther, std::move(metrics)};
}

std::optional<WeightStage::Staged> WeightStage::finish(bool samples) {
  const bool waits = !samples && !options_.fetch_takes_long;
  if (!waits && result_.wait_for(0s) == std::future_status::timeout) return std::nullopt;
  Outcome outcome = result_.get();
  const Result<Digest>& root = outcome.root;
  const Wish wish = *std::exchange(staging_, std::nullopt);
  if (root) {
    std::swap(spare_, packed_);
    packed_root_ = root.value();
  }
  // A version asked for meanwhile is the one to answer; and nobody waits for what was stopped.
  if (wish_ || stop_.stop_requested()) return std::nullopt;
  Staged answer{.version = wish.version, .metrics = std::move(outcome.metrics)};
  if (!root) {
    answer.failure = root.failure();
    answer.cause = outcome.cause;
  }
  return answer;
}

}  // namespace tailrace
