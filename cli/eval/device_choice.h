// Which device a command computes on: `--device`.
#pragma once

#include <string>

#include "core/base/enum_names.h"
#include "core/base/flags.h"
#include "core/model/model_config.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
constexpr auto enum_names(DeviceChoice) {
  return name_table<DeviceChoice>(
      {{DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCpu, "cpu"}, {DeviceChoice::kCuda, "cuda"}});
}

inline void add_device_flag(Command& command, DeviceChoice& device) {
  command.option(
      "--device", device,
      {.help = "cpu or cuda; auto: a GPU where there is one that takes the model, of several "
               "the first that CUDA_VISIBLE_DEVICES leaves"});
}

// The first device of that kind (CUDA_VISIBLE_DEVICES says which comes first). Throws UserError
// where it is asked for and there is none, or where it cannot compute the model.
Device choose_device(DeviceChoice choice, const ModelConfig& config, Dtype weights);

// "NVIDIA H100 80GB HBM3 (cuda)"; "the CPU".
std::string describe(Device device);
// What keeps a model from the GPU of this machine; empty: nothing does, or there is none.
std::string why_not_cuda(const ModelConfig& config, Dtype weights);

}  // namespace tailrace
