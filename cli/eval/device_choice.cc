#include "cli/eval/device_choice.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/backend.h"

namespace tailrace {
namespace {

// Why a GPU cannot compute the model; empty: it can.
std::string gap(const ModelConfig& config, Dtype weights) {
  if (config.num_experts > 0) return "the model has experts, which the CPU alone computes so far";
  if (weights == Dtype::kBF16 && config.head_dim % 8 != 0)
    return fmt::format(
        "its heads have {} dimensions, which is no multiple of 8, and bf16 needs one",
        config.head_dim);
  return "";
}

}  // namespace

Device choose_device(DeviceChoice choice, const ModelConfig& config, Dtype weights) {
  if (choice == DeviceChoice::kCpu) return {};
  const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
  const std::string reason = facts.devices.empty() ? facts.fault : gap(config, weights);
  if (reason.empty()) return {DeviceKind::kCuda, 0};
  if (choice == DeviceChoice::kAuto) return {};
  throw UserError(
      "--device cuda: {}.\n       Try --device cpu; 'tailrace doctor' tells what there is.",
      reason);
}

std::string describe(Device device) {
  if (device.kind == DeviceKind::kCpu) return "cpu";
  return fmt::format("{} (cuda)",
                     backend_facts(device.kind).devices.at(static_cast<size_t>(device.index)).name);
}

}  // namespace tailrace
