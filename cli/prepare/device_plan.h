// The plan of the devices that a run computes on.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/prepare/placed_run.h"
#include "core/model/model_config.h"
#include "core/run/memory_need.h"
#include "kernels/base/device.h"

namespace tailrace {

struct DevicePlan {
  Device trainer, rollout;
  bool samples_here = false;  // rollout workers of this machine take part
  // Of a plan for hardware that is not here: its name, in the place of a device of this machine.
  std::string card = {};
  std::string why_cpu = {};          // ChosenDevice has it
  std::string why_trainer_cpu = {};  // of a trainer that stays there while others sample on a GPU
  std::string dtype = {};            // "bf16" or "f32": of what is on a GPU
  // On the GPU, of one of each; empty where none of this machine computes there.
  std::vector<MemoryItem> trainer_memory = {}, rollout_worker = {};
  // Memory of it that both have in turn (run.colocate), and that the lists above then have not.
  std::vector<MemoryItem> in_turn = {};
};

// Without the memory. Throws UserError where the device that is asked for would have nothing to do.
DevicePlan plan_devices(const PlacedRun& placed);

// For a trainer and a rollout worker that take turns on a device: takes what only a turn needs out
// of the lists of what they hold there. Returns the memory that both have in turn.
std::vector<MemoryItem> share_turns(std::vector<MemoryItem>& trainer,
                                    std::vector<MemoryItem>& rollout_worker);

// "the CPU"; "NVIDIA H100 (cuda) for rollout workers, in bf16", and who stays on the CPU.
std::string describe(const DevicePlan& plan, const ResolvedRun& run);
// "11.2 GiB of the 80.0 GiB of NVIDIA H100 (cuda) for the trainer, 2 rollout workers"; empty where
// nothing of this machine computes there.
std::string describe_memory(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers);

// The memory that this machine's workers certainly take beyond the device's, as a sentence;
// empty: it is enough, or not known.
std::string device_shortage(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers);
// Throws it as a UserError.
void check_device_size(const DevicePlan& plan, int64_t trainers, int64_t rollout_workers);

}  // namespace tailrace
