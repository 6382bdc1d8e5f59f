// The weights that are trained, in all of their forms: the float32 master where updates are made, a
// copy of it in memory of the host, and what products read; beside a frozen base those of an
// adapter. And the weights of the reference policy, which nobody trains.
//
// Thread: one at a time.
#pragma once

#include <memory>

#include "core/model/model.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"

namespace tailrace {

class TrainedWeights {
 public:
  // Zero until changed() is told of others. `compute`: of what products read. `base`: the frozen
  // weights beside those of config.lora. Borrows the model's layout and what the stream names.
  TrainedWeights(const Stream& stream, const Model& model, Dtype compute,
                 std::shared_ptr<const PackedWeights> base);

  const ParameterLayout& layout() const { return host_.layout(); }
  // The master weights where updates are made. After writing to them: updated().
  Parameters& master() { return on_device_ ? *on_device_ : host_; }
  // The same in memory of the host: where they lie on the CPU, else a copy, for which this waits if
  // an update came since the last one. After writing to them: changed().
  Parameters& on_host() { return fetch(), host_; }
  const Parameters& on_host() const { return fetch(), host_; }
  // As they were when the host had them last. Waits for nothing.
  const Parameters& last_on_host() const { return host_; }
  // The weights that products read.
  const std::shared_ptr<PackedWeights>& shared() const { return packed_; }
  PackedWeights& packed() { return *packed_; }

  void changed();  // by the host; packs them
  void updated() { is_stale_ = on_device_ != nullptr; }
  void repack();  // what products read, of master()

  // A copy of `parameters`; or the base without an adapter, which takes no memory.
  void set_reference(const Parameters& parameters);
  void set_reference_to_base();
  const PackedWeights* reference() const { return reference_.get(); }  // null: none was set

 private:
  void fetch() const;

  Stream stream_;
  const ModelConfig& config_;
  std::shared_ptr<const PackedWeights> base_;  // of an adapter; null: there is none
  mutable Parameters host_;
  mutable bool is_stale_ = false;          // host_, against on_device_
  std::unique_ptr<Parameters> on_device_;  // null: host_ are the master weights
  std::shared_ptr<PackedWeights> packed_;
  std::shared_ptr<const PackedWeights> reference_;
};

}  // namespace tailrace
