// The weights of one version in the form that products read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/linear.h"

namespace tailrace {

// The values of a tensor where they lie: in Parameters, of some device, or in a mapped file.
// Row-major, float32 or bfloat16, aligned as such. The host reads those of the CPU.
class TensorValues {
 public:
  TensorValues() = default;
  TensorValues(std::span<const float> values, Device device = {})  // NOLINT
      : dtype_(Dtype::kF32), device_(device), bytes_(std::as_bytes(values)) {}
  TensorValues(std::span<const Bf16> values)  // NOLINT(google-explicit-constructor)
      : dtype_(Dtype::kBF16), bytes_(std::as_bytes(values)) {}

  Dtype dtype() const { return dtype_; }
  Device device() const { return device_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / size_of(dtype_); }
  TensorValues part(int64_t first, int64_t count) const;
  // Takes `next` to these where it lies right behind them; false: it does not.
  bool extend_by(const TensorValues& next);
  std::span<const float> floats() const;       // of device(); TR_CHECKs that they are
  void to_floats(std::span<float> out) const;  // exactly; out has size()

 private:
  Dtype dtype_ = Dtype::kF32;
  Device device_;
  std::span<const std::byte> bytes_;
};

// The values of a version by the names of its layout.
using WeightSource = std::function<TensorValues(std::string_view name)>;

// A tensor of the layout as it lies in the packed form: a vector, or rows of matrices of one shape
// that are counted through.
struct PackedTensor {
  std::string name = {};
  int64_t rows = 0, cols = 0;  // of a vector 0 columns
  int64_t first_row = 0;       // of the first among those of the vector or the matrices
  std::span<const float> vector = {};
  WeightStack matrices = {};
  Dtype dtype = Dtype::kF32;  // to which values are rounded
  float offset = 0;           // what was added to them
};

// Made once, after each install or update; keeps its own copy, on the stream's device, of
// everything that forward() and backward() read. With an adapter (Lora) there are two of them: that
// of the base, which never changes and which several adapters share, and one of the adapter's
// matrices (float32 always), which is what an update or an install packs. Matrices are of one
// dtype, the few values of norms and biases float32; those of norms are the factors themselves
// (ModelConfig::offset_norms). A tied head and its embeddings are one Weight.
//
// Thread: may be shared while nobody repacks.
class PackedWeights {
 public:
  PackedWeights(const Stream& stream, const ModelConfig& config, const Parameters& parameters,
                Dtype dtype = Dtype::kF32);
  // Takes a Buffer of bytes() with whatever the caller has put there: for a measurement, which
  // needs no meaningful values. repack() writes others.
  PackedWeights(const ModelConfig& config, Dtype dtype, Buffer packed);
  // An adapter beside `base`, in a Buffer of adapter_bytes(); config.lora is its shape.
  PackedWeights(std::shared_ptr<const PackedWeights> base, const ModelConfig& config,
                Buffer packed);
  PackedWeights(const Stream& stream, std::shared_ptr<const PackedWeights> base,
                const ModelConfig& config, const Parameters& adapter);
  static int64_t adapter_bytes(const ModelConfig& config, Device device = {});

  // The same shapes, new values; of an adapter's alone. What lies in one piece in the source is
  // read where it lies.
  void repack(const Stream& stream, const WeightSource& source);
  void repack(const Stream& stream, const Parameters& parameters);
  static int64_t bytes(const ModelConfig& config, Dtype dtype = Dtype::kF32, Device device = {});

  struct Layer : LayerOf<std::span<const float>, Weight, WeightStack> {
    AdapterOf<Weight> adapter = {};
  };
  const std::vector<Layer>& layers() const { return layers_; }
  std::span<const float> final_norm() const { return final_norm_; }
  const Weight& embeddings() const { return embeddings_; }  // [vocab, hidden]
  float embedding_scale() const;                            // of the rows that forward() takes
  // [num_ids, hidden]: the padded ids of a vocabulary have no logits.
  const Weight& head() const { return head_; }
  // [hidden], of a reward model, which has no head(); of others empty.
  std::span<const float> score() const { return score_; }
  Dtype dtype() const { return dtype_; }

  // For who proves what was packed: all of it in the order of the layout, padded ids included; of
  // an adapter its own matrices. Its rows are read back as products read them: rows [first, first +
  // n) of a tensor into `rows` [n, cols] (of a vector [n, 1]), which is memory of the CPU.
  std::vector<PackedTensor> tensors() const;
  void read(const Stream& stream, const PackedTensor& tensor, int64_t first, Matrix rows) const;
  ConstDeviceBytes memory() const { return buffer_.bytes(); }

 private:
  float offset_of(ParameterKind kind) const;  // of the values of such a vector
  Weight whole_head() const;                  // with the padded ids

  ModelConfig config_;
  Dtype dtype_;
  std::shared_ptr<const PackedWeights> base_;  // null: this is one itself
  Buffer buffer_;
  std::vector<Layer> layers_;
  std::span<const float> final_norm_, score_;
  Weight embeddings_, head_;
};

}  // namespace tailrace
