// The hardware of a simulated run's workers, as numbers: how long a decode step, a prefill, a
// training step and a transfer of weights take. Seconds are simulated ones.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace tailrace::simulator {

// One decode step gives every sequence of a batch one token. It takes
//   step + n * sequence + c * context  seconds
// for n sequences that hold c tokens of KV together: reading the weights, computing each row, and
// reading the KV cache. All are >= 0, and one is > 0.
struct DecodeModel {
  double step = 0.01;
  double sequence = 0;
  double context = 0;
  double seconds(double sequences, double tokens) const {
    return step + sequences * sequence + tokens * context;
  }
};

// One rollout worker: an engine, on however many devices.
struct Hardware {
  std::string name = {};
  DecodeModel decode = {};
  double prefill_tokens_per_s = 0;  // 0: prefill takes no time
  int64_t kv_tokens = 0;            // that its KV cache holds; 0: any number
  int64_t devices = 1;              // of one worker
  double turn = 0;                  // seconds that decoding stands still when a turn ends
  double price_per_hour = 0;        // of one worker
};

// One trainer, on however many devices. A step of s samples with t tokens (prompts and observations
// included) takes
//   step + s * sample + t * token + update  seconds, and save seconds more behind it when it writes
// a checkpoint: the next step waits. With HandOverBy::kGroups the tokens of a part are computed as
// it comes, and `update` begins when the last one is done.
struct TrainModel {
  double step = 0, sample = 0, token = 0;
  double update = 0;      // optimizer, all updates of a step together
  double publish = 0;     // from the update to when others may fetch the version
  double save = 0;        // a checkpoint
  int64_t keep_last = 1;  // checkpoints
  double warm_up = 0;     // before version 0
  // A group whose samples all have the same reward is left out: algo.filter_zero_signal = drop, and
  // an advantage that compares members. Others (gae, reward) are trained on it.
  bool drops_equal_groups = false;
  double price_per_hour = 0;
};

// How the weights of a version reach one rollout worker: `fetch` seconds that each takes by itself
// (reading, proof, packing), plus the payload over its own link and the link that all workers of
// its pool share, at the rate of the slower one. It begins when the shared link has taken the
// payloads before it. Rates of 0 take no time.
struct TransferModel {
  double payload_bytes = 0;
  double fetch = 0;
  double bytes_per_s = 0;
  double shared_bytes_per_s = 0;
  double switch_over = 0;  // seconds that the engine stands still; KV is computed again behind it
};

}  // namespace tailrace::simulator
