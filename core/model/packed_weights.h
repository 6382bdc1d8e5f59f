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
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// Made once, after each install or update; keeps its own copy, on the stream's device, of
// everything that forward() and backward() read. Matrices are of one dtype, the few values of norms
// and biases float32; those of norms are the factors themselves (ModelConfig::offset_norms). A tied
// head and its embeddings are one Weight.
//
// Thread: may be shared while nobody repacks.
class PackedWeights {
 public:
  PackedWeights(const Stream& stream, const ModelConfig& config, const Parameters& parameters,
                Dtype dtype = Dtype::kF32);
  // Of a Buffer of bytes() that holds what the caller has put there: for who measures, and needs no
  // values that mean something. repack() writes others.
  PackedWeights(const ModelConfig& config, Dtype dtype, Buffer packed);
  void repack(const Stream& stream, const Parameters& parameters);  // same shapes, new values
  static int64_t bytes(const ModelConfig& config, Dtype dtype = Dtype::kF32, Device device = {});

  using Layer = LayerOf<std::span<const float>, Weight, WeightStack>;
  const std::vector<Layer>& layers() const { return layers_; }
  std::span<const float> final_norm() const { return final_norm_; }
  const Weight& embeddings() const { return embeddings_; }  // [vocab, hidden]
  float embedding_scale() const;                            // of the rows that forward() takes
  // [num_ids, hidden]: the padded ids of a vocabulary have no logits.
  const Weight& head() const { return head_; }
  Dtype dtype() const { return dtype_; }

 private:
  ModelConfig config_;
  Dtype dtype_;
  Buffer buffer_;
  std::vector<Layer> layers_;
  std::span<const float> final_norm_;
  Weight embeddings_, head_;
};

}  // namespace tailrace
