#include "trainer/worker/worker_config.h"

#include <algorithm>

namespace tailrace {

bool reference_is_base(const TrainerWorkerConfig& config) {
  if (!config.model.lora) return false;
  const bool is_fresh =
      config.adapter_dir.empty() && std::ranges::none_of(config.stages, &RowStage::trains_policy);
  return is_fresh || config.algo.kl.reference == KlReference::kBase;
}

}  // namespace tailrace
