#include "cli/eval/device_choice.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/backend.h"

namespace tailrace {
namespace {

// Why a GPU cannot compute the model; empty: it can.
std::string gap(const ModelConfig& config, Dtype weights) {
  if (config.num_experts > 0) return "the model has experts, which the CPU alone computes so far";
  if (config.lora)
    return "an adapter beside its base is computed on the CPU alone so far; 'tailrace merge' makes "
           "one model of both";
  if (weights == Dtype::kBF16 && config.head_dim % 8 != 0)
    return fmt::format(
        "bf16 wants heads of a multiple of 8 dimensions, and those of the model have {}; --compute "
        "f32 takes them",
        config.head_dim);
  return "";
}

}  // namespace

Device choose_device(DeviceChoice choice, const ModelConfig& config, Dtype weights) {
  if (choice == DeviceChoice::kCpu) return {};
  const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
  const std::string lacks = gap(config, weights);
  if (!facts.devices.empty() && lacks.empty())
    return {DeviceKind::kCuda, facts.devices.front().index};
  if (choice == DeviceChoice::kAuto) return {};
  if (facts.devices.empty())
    throw UserError(
        "--device cuda: {}.\n       Try --device cpu; 'tailrace doctor' tells what there is.",
        facts.fault);
  throw UserError("--device cuda: {}.\n       Try --device cpu.", lacks);
}

std::string describe(Device device) {
  if (device.kind == DeviceKind::kCpu) return "the CPU";
  for (const DeviceFacts& facts : backend_facts(device.kind).devices)
    if (facts.index == device.index) return fmt::format("{} (cuda)", facts.name);
  return fmt::format("device {}", device.index);
}

std::string why_not_cuda(const ModelConfig& config, Dtype weights) {
  const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
  if (!facts.devices.empty()) return gap(config, weights);
  return facts.driver.empty() ? "" : facts.fault;
}

}  // namespace tailrace
