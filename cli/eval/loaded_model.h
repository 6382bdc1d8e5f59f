// A Hugging Face folder ready for forward passes, for the commands that need no trainer: a model,
// or an adapter of peft, which computes beside its base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "cli/config/device_choice.h"
#include "core/config/flags.h"
#include "core/model/compute.h"
#include "core/model/model.h"
#include "core/model/packed_weights.h"
#include "core/text/tokenizer.h"
#include "kernels/base/backend.h"
#include "kernels/base/device.h"
#include "kernels/base/thread_pool.h"

namespace tailrace {

// How a command computes.
struct ComputeFlags {
  DeviceChoice device = DeviceChoice::kAuto;
  Compute compute = Compute::kAuto;
  Compute kv_cache_dtype = Compute::kAuto;
  int threads = 0;  // 0: all cores that this process may use
};
void add_compute_flags(Command& command, ComputeFlags& flags);

// Thread: the owner's only (the pool has one caller).
class LoadedModel {
 public:
  // `max_context`: positions that will be used, which cost memory; 0: all that the model has.
  // Throws UserError: what is missing, cut or not supported. Says on stderr which GPU it uses.
  LoadedModel(const std::filesystem::path& directory, const ComputeFlags& flags,
              int64_t max_context = 0);

  // Sets how many positions will be used. Ends the references that model() and config() gave.
  void fit(int64_t context);

  const Model& model() const { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  const PackedWeights& weights() const { return *weights_; }
  // For those who keep the weights of a version alive (Engine::install).
  std::shared_ptr<const PackedWeights> shared_weights() const { return weights_; }
  const Stream& stream() const { return stream_->get(); }
  int num_threads() const { return pool_->num_threads(); }

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<const PackedWeights> weights_;
};

// Where the tokenizer and the chat template of a policy are: in its folder, or in that of the base
// where an adapter has none.
std::filesystem::path tokenizer_folder(const std::filesystem::path& directory);

// The tokenizer of such a folder. Throws UserError when it has ids that the model lacks.
std::unique_ptr<text::Tokenizer> load_tokenizer_of(const std::filesystem::path& directory,
                                                   const ModelConfig& config);

}  // namespace tailrace
