// The weights of one version in the form that products read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// Packed once, after each install or update; keeps its own copy of everything that forward() needs.
//
// Thread: may be shared while nobody repacks.
class PackedWeights {
 public:
  PackedWeights(const Stream& stream, const ModelConfig& config, const Parameters& parameters);
  void repack(const Stream& stream, const Parameters& parameters);  // same shapes, new values

  using Layer = LayerOf<std::span<const float>, PackedWeight>;
  const std::vector<Layer>& layers() const { return layers_; }
  std::span<const float> final_norm() const { return final_norm_; }
  ConstMatrix embeddings() const { return embeddings_; }  // [vocab, hidden]
  const PackedWeight& head() const { return head_; }      // [vocab, hidden]

 private:
  ModelConfig config_;
  Buffer buffer_;
  std::vector<Layer> layers_;
  std::span<const float> final_norm_;
  ConstMatrix embeddings_;
  PackedWeight head_;
};

}  // namespace tailrace
