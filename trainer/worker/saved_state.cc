#include "trainer/worker/saved_state.h"

#include "core/base/error.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/weights/manifest.h"

namespace tailrace {

void tell_passed_over(Log& log, const ProvedCheckpoint& loaded, std::string_view unit) {
  for (const std::string& reason : loaded.passed_over)
    log.warning("checkpoint{}{}; it goes on from {} {} ({})", kPassedOver, reason, unit,
                loaded.state.step, loaded.path.string());
}

void require_saved_base(const CheckpointState& saved, const Digest& base,
                        const std::filesystem::path& model_dir) {
  if (saved.base == base) return;
  throw UserError(
      "{}: the weights of the base are not those that this run's adapter was trained beside. "
      "Put them back, or start a new run directory.",
      model_dir.string());
}

ModelConfig written_as(const ModelConfig& model, Dtype dtype) {
  ModelConfig config = model;
  config.dtype = dtype;
  return config;
}

Digest root_of(const Parameters& parameters) {
  return make_manifest(parameters, 0, 0, numerics_class()).master;
}

void ReferenceWeights::load(const Digest& expected) {
  // The digest of the base stands for "no adapter": the reference is the frozen weights themselves,
  // and no file of it was written.
  if (config_.model.lora && expected == base_) {
    digest_ = base_;
    return trainer_.set_reference_to_base();
  }
  Parameters& reference = trainer_.scratch();
  load_parameters(config_.run.reference(), config_.model, reference,
                  config_.model.lora ? kAdapterFile : "");
  digest_ = root_of(reference);
  if (digest_ != expected)
    throw UserError(
        "{}: the weights that algo.kl holds the policy to were changed or damaged since the run "
        "began. Put them back, or start a new run directory.",
        config_.run.reference().string());
  trainer_.set_reference(reference);
}

void ReferenceWeights::keep() {
  if (reference_is_base(config_)) return load(base_);
  const Parameters& policy = trainer_.parameters();
  trainer_.set_reference(policy);
  digest_ = root_of(policy);
  if (config_.model.lora) {
    std::filesystem::create_directories(config_.run.reference());
    save_adapter(config_.run.reference(), config_.model.lora, policy, base_);
  } else {
    // In float32 whatever the policy computes in: load() compares the digest of these weights.
    save_model(config_.run.reference(), written_as(config_.model, Dtype::kF32), policy);
  }
}

}  // namespace tailrace
