// One RL step (generate, reward, train, publish) by phase, in one process and without the
// scheduler: what the engine and the trainer cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tailrace {

struct RlStepCase {
  int64_t prompts = 8, group_size = 8;
  int64_t prompt_tokens = 21, max_new_tokens = 32;
  int64_t hidden = 128, intermediate = 384, layers = 4, heads = 4, kv_heads = 2, vocab = 512;
  // Sampled ids below this end a sequence: 8 of 512 gives a mean length of about 24 under random
  // weights.
  int64_t stop_ids = 8;
  int threads = 2;
  int steps = 20, warmup = 3;
};

struct RlStepReport {
  std::vector<double> generate_s, reward_s, train_s, install_s, total_s;  // a value for each step
  double mean_new_tokens = 0;
  double train_gflops = 0;         // median, 6 N flops for each token of the trained sequences
  double decode_tokens_per_s = 0;  // median
  double mismatch_abs_max = 0;     // sampled against recomputed log-probabilities: must be 0
  int64_t parameters = 0;
};

RlStepReport bench_rl_step(const RlStepCase& setup);

}  // namespace tailrace
