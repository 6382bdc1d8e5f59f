#include "trainer/trained_weights.h"

#include <utility>

#include "kernels/base/check.h"

namespace tailrace {

TrainedWeights::TrainedWeights(const Stream& stream, const Model& model, Dtype compute,
                               std::shared_ptr<const PackedWeights> base)
    : stream_(stream),
      config_(model.config()),
      base_(std::move(base)),
      host_(model.trained()),
      on_device_(stream.device.kind == DeviceKind::kCpu
                     ? nullptr
                     : std::make_unique<Parameters>(model.trained(), stream.device)),
      packed_(config_.lora ? std::make_shared<PackedWeights>(stream_, base_, config_, host_)
                           : std::make_shared<PackedWeights>(stream_, config_, master(), compute)) {
}

void TrainedWeights::changed() {
  if (on_device_) {
    copy(stream_, on_device_->bytes(), host_.bytes());
    wait(stream_);
    is_stale_ = false;
  }
  repack();
}

void TrainedWeights::repack() { packed_->repack(stream_, master()); }

// The device has the newest weights; the host's copy is read by checkpoints and digests alone, so
// it is brought over when one of them asks.
void TrainedWeights::fetch() const {
  if (!is_stale_) return;
  copy(stream_, host_.bytes(), std::as_const(*on_device_).bytes());
  wait(stream_);
  is_stale_ = false;
}

void TrainedWeights::set_reference(const Parameters& parameters) {
  reference_ = config_.lora ? std::make_shared<PackedWeights>(stream_, base_, config_, parameters)
                            : std::make_shared<PackedWeights>(stream_, config_, parameters,
                                                              packed_->dtype());
}

void TrainedWeights::set_reference_to_base() {
  TR_CHECK(base_ != nullptr, "there is no base");
  reference_ = base_;
}

}  // namespace tailrace
