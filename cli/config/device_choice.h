// Which device computes: `--device` of a command, `model.device` of a run.
//
// Thread: any, once the backends are provided.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/enum_names.h"
#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"

namespace tailrace {

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceChoice) {
  return name_table<DeviceChoice>(
      {{DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCpu, "cpu"}, {DeviceChoice::kCuda, "cuda"}});
}

// Where the choice was made, which decides what a message advises.
enum class DeviceAsker : uint8_t { kCommand, kRun };

struct ChosenDevice {
  Device device = {};
  std::string why_cpu = {};  // of auto, where this machine has a driver; empty: nothing to tell
};

// The first device of that kind (CUDA_VISIBLE_DEVICES says which comes first). Throws UserError
// where it is asked for and there is none, or where it cannot compute the model.
ChosenDevice choose_device(DeviceChoice choice, const ModelConfig& config, const Elements& elements,
                           DeviceAsker asker = DeviceAsker::kCommand);

// Throws UserError where no GPU computes with these elements.
void check_gpu_elements(const Elements& elements);

// "NVIDIA H100 80GB HBM3 (cuda)"; "the CPU".
std::string describe(Device device);
// All memory of a device; 0: it is not known, or the device is the CPU.
int64_t memory_of(Device device);

}  // namespace tailrace
