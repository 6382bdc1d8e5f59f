#include "trainer/worker/worker_config.h"

namespace tailrace {

bool reference_is_base(const TrainerWorkerConfig& config) {
  if (!config.model.lora) return false;
  const bool is_fresh =
      config.adapter_dir.empty() && config.sft.data.empty() && config.sft.demonstrations == 0;
  return is_fresh || config.algo.kl.reference == KlReference::kBase;
}

}  // namespace tailrace
