#include "cli/config/device_choice.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/backend.h"

namespace tailrace {
namespace {

constexpr std::string_view kOtherCache =
    "a KV cache of other elements than those of the weights is of the CPU alone so far";
bool has_other_cache(const Elements& elements) {
  return elements.kv_cache.value_or(elements.weights) != elements.weights;
}

// Why a GPU cannot compute the model; empty: it can.
std::string gap(const ModelConfig& config, const Elements& elements, DeviceAsker asker) {
  const bool of_run = asker == DeviceAsker::kRun;
  if (config.lora)
    return fmt::format("an adapter beside its base is computed on the CPU alone so far{}",
                       of_run ? "" : "; 'tailrace model merge' makes one model of both");
  if (has_other_cache(elements))
    return fmt::format("{}; {} takes theirs", kOtherCache,
                       of_run ? "model.kv_cache_dtype=auto" : "--kv-cache-dtype auto");
  if (elements.weights == Dtype::kBF16 && config.head_dim % 8 != 0)
    return fmt::format(
        "bf16 wants heads of a multiple of 8 dimensions, and those of the model have {}; {} takes "
        "them",
        config.head_dim, of_run ? "model.compute=f32" : "--compute f32");
  return "";
}

const DeviceFacts* facts_of(Device device) {
  for (const DeviceFacts& facts : backend_facts(device.kind).devices)
    if (facts.index == device.index) return &facts;
  return nullptr;
}

[[noreturn]] void refuse(DeviceAsker asker, const std::string& why, std::string_view more) {
  if (asker == DeviceAsker::kRun)
    throw UserError::at("model.device", "is cuda: {}.\n       Try model.device=cpu{}.", why, more);
  throw UserError("--device cuda: {}.\n       Try --device cpu{}.", why, more);
}

}  // namespace

ChosenDevice choose_device(DeviceChoice choice, const ModelConfig& config, const Elements& elements,
                           DeviceAsker asker) {
  if (choice == DeviceChoice::kCpu) return {};
  const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
  const std::string lacks = gap(config, elements, asker);
  if (!facts.devices.empty() && lacks.empty())
    return {.device = {DeviceKind::kCuda, facts.devices.front().index}};
  const std::string& why = facts.devices.empty() ? facts.fault : lacks;
  if (choice == DeviceChoice::kCuda)
    refuse(asker, why, facts.devices.empty() ? "; 'tailrace doctor' tells what there is" : "");
  // A person without a GPU is told nothing.
  return {.why_cpu = facts.devices.empty() && facts.driver.empty() ? "" : why};
}

void check_gpu_elements(const Elements& elements) {
  if (has_other_cache(elements))
    throw UserError::at("model.kv_cache_dtype", "is {} beside weights of {}: {}. Try auto.",
                        *elements.kv_cache == Dtype::kBF16 ? "bf16" : "f32",
                        elements.weights == Dtype::kBF16 ? "bf16" : "f32", kOtherCache);
}

std::string describe(Device device) {
  if (device.kind == DeviceKind::kCpu) return "the CPU";
  const DeviceFacts* facts = facts_of(device);
  return facts != nullptr ? fmt::format("{} (cuda)", facts->name)
                          : fmt::format("device {}", device.index);
}

int64_t memory_of(Device device) {
  const DeviceFacts* facts = device.kind == DeviceKind::kCpu ? nullptr : facts_of(device);
  return facts != nullptr ? facts->total_bytes : 0;
}

}  // namespace tailrace
