// The keys of a hardware file, on which `tailrace plan --hardware` plans a run (hardware_file.h).
// The config of the run says all else.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/options.h"
#include "scheduler/simulator/hardware.h"

namespace tailrace {

// The hardware of one worker, as a person can look it up or measure it. The defaults are about
// those of one H100 with a dense policy of 8 B parameters in bfloat16.
//
// A decode step of n sequences with c tokens of KV together takes
//   step + n * sequence + c * context   seconds, with
//   step     = step_ms / 1000
//   context  = 1 / kv_read_tokens_per_s
//   sequence = what is left of 1 / tokens_per_s, when at_sequences sequences of
//              at_context_tokens each decode: 1 / tokens_per_s - step / at_sequences
//              - at_context_tokens * context
struct HardwareSection {
  std::string name = {};
  double tokens_per_s = 4000;
  int64_t at_sequences = 128, at_context_tokens = 2000;
  double step_ms = 8;
  double kv_read_tokens_per_s = 1.5e7;
  double prefill_tokens_per_s = 25000;
  int64_t kv_tokens = 400000;
  double train_tokens_per_s = 6000;
  int64_t devices = 1;
  double price_per_hour = 0;
  // A card by its data sheet; 0: not said. Where they are given, what is not given above follows
  // from them and the sizes of the model (hardware_of_model.h).
  double memory_gib = 0, memory_gb_per_s = 0, bf16_tflops = 0, link_gb_per_s = 0;
  double memory_ratio = 0.7, compute_ratio = 0.4;

  void visit(OptionVisitor& v);
  bool is_card() const { return memory_gb_per_s > 0 && bf16_tflops > 0; }
};

// A pool of the run (rollout.pools) on hardware of its own.
struct SimulatedPoolSection {
  std::string name = {};
  std::string hardware = {};  // empty: rollout_hardware
  int64_t workers = 0;        // 0: the pool's

  void visit(OptionVisitor& v);
};

struct SimulatedEpisodesSection {
  std::string from;  // a run, or a file of recorded episodes; empty: they are drawn
  int64_t prompt_tokens = 0;
  int64_t response_tokens = 0;  // median
  double sigma_prompt = 0.5, sigma_response = 0.7;
  double endless_ratio = 0;
  int64_t limit_tokens = 0;
  double turns = 1;
  double env_seconds = 0, env_sigma = 0;
  int64_t env_tokens = 0;
  double reset_seconds = 0, reset_sigma = 0;
  double verify_seconds = 0, verify_sigma = 0;
  double success = 0.5;

  void visit(OptionVisitor& v);
};

struct SimulatedTrainerSection {
  std::string hardware;  // empty: the first one
  int64_t workers = 1;
  double step_seconds = 0, update_seconds = 1;
  double publish_seconds = 2, save_seconds = 30;

  void visit(OptionVisitor& v);
};

struct SimulatedWeightsSection {
  int64_t payload_bytes = 0;
  double fetch_seconds = 1;
  double link_mbit = 0, shared_link_mbit = 0;
  double switch_ms = 100;

  void visit(OptionVisitor& v);
};

struct SimulatedFaultsSection {
  double worker_mtbf_hours = 0, trainer_mtbf_hours = 0, hang_mtbf_hours = 0;
  double noticed_seconds = 1, restart_seconds = 60, hang_seconds = 60;
  double env_failed = 0, install_failed = 0, broken_tasks = 0;

  void visit(OptionVisitor& v);
};

struct SimulateSection {
  double days = 1;
  int64_t steps = 0;
  int64_t seed = 0;
  std::vector<HardwareSection> hardware;  // empty: one with the defaults
  std::string rollout_hardware;           // empty: the first one
  int64_t workers = 0;
  int64_t reward_workers = 0;
  std::vector<SimulatedPoolSection> pools;
  bool lockstep = false;
  double message_ms = 0.5;
  SimulatedEpisodesSection episodes;
  SimulatedTrainerSection trainer;
  SimulatedWeightsSection weights;
  SimulatedFaultsSection faults;

  void visit(OptionVisitor& v);
  // Rules over several fields. Throws UserError with the key.
  void validate() const;
};

// The entry of this name, which validate() has found; of an empty name the first one.
HardwareSection hardware_section(const SimulateSection& section, std::string_view name);

// The same as the simulator has it: a rollout worker on this hardware.
simulator::Hardware hardware_of(const SimulateSection& section, std::string_view name);

}  // namespace tailrace
