// The workloads and the modes of the scheduler that whole runs are compared on: `modes` measures
// their time, `reward --modes` what they learn.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "bench/run/launched_run.h"

namespace tailrace {

// One of several ways to make a run, by the keys that it adds.
struct Arm {
  std::string name;
  Keys keys;
};

// Those with these names, in the order of `all`; all without names.
std::vector<Arm> chosen(const std::vector<Arm>& all, const std::vector<std::string>& names);
std::vector<std::string> names_of(const std::vector<Arm>& arms);

// length_tailed, latency_injected and single_turn, on the environment `paced`.
const std::vector<Arm>& paced_workloads();
// The first is `sync`, which the others are compared with.
const std::vector<Arm>& paced_modes();
// What it trains on is of the step's own weights.
bool is_on_policy(const std::string& mode);

constexpr int kPacedPrompts = 16, kPacedGroup = 4, kPacedWorkers = 2;

struct PacedConfig {
  int room = 1;  // steps of `sync` that the workers hold at once
  double learning_rate = 0;
};
// The config that all workloads and modes share.
std::string paced_config(const PacedConfig& config);

}  // namespace tailrace
