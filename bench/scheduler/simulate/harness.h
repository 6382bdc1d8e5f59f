// What the experiments share: a run that is checked, a fit, and the cost of a model on a GPU.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler/simulator/world.h"

namespace tailrace::simulate {

// A law of `prompts` x `group` a step that goes on for ever, with deadlines that no healthy worker
// of a simulated cluster misses.
scheduler::Config law_of(const scheduler::Mode& mode, int64_t prompts, int64_t group);
scheduler::Mode preset(scheduler::ModeName name);
// Synchronous but for `steps` of credit, with staleness to match.
scheduler::Mode ahead_by(double steps);

struct Measured {
  double step = 0;               // seconds from one published version to the next
  double rollout = 0;            // of them, until the trainer had all of a step
  double tokens_per_s = 0;       // trained
  double old_share = 0;          // of the trained tokens: sampled by older versions than the newest
  double staleness = 0;          // mean over samples, in versions
  double busy = 0;               // share of the time in which engines had work
  double trainer_busy = 0;       // share
  double longest = 0;            // mean over the steps of the longest sample, in tokens
  double tokens_per_sample = 0;  // mean
  std::vector<simulator::StepRecord> steps;
};

// Runs `warm_up` + `steps` steps and measures the last `steps` of them. Throws WrongResult unless
// each step was published whole, in order, and the run neither halted nor stood still.
Measured measure(const scheduler::Config& law, const simulator::Cluster& cluster,
                 const simulator::EpisodeModel& episodes, int64_t warm_up, int64_t steps);

// The positive x at which f(x) is `target` within a part `tolerance` of it, from a guess; f rises
// or falls. Throws WrongResult where it finds none.
double solve(double target, double guess, const std::function<double(double)>& f,
             double tolerance = 0.005);

// The same for how slow decoding is beside the roofline (engine_of). Throws WrongResult below 1:
// nothing decodes faster than its roofline, so that the fit has something else to account for.
double solve_slower(double target, double guess, const std::function<double(double)>& f);

// The share of a standard normal distribution below x.
double normal_below(double x);

struct Gpu {
  double bytes_per_s = 0, flops_per_s = 0, memory_bytes = 0;
};
inline constexpr Gpu kH800{3.35e12, 990e12, 80e9};  // H100 too
inline constexpr Gpu kH20{4.0e12, 148e12, 96e9};
inline constexpr Gpu kAscend910{1.6e12, 320e12, 64e9};

struct Model {
  double parameters = 0;
  double kv_bytes = 0;  // a token: 2 (K and V) x layers x KV heads x head width x 2 bytes
};
inline constexpr Model kQwen3_4B{4.0e9, 2.0 * 36 * 8 * 128 * 2};
inline constexpr Model kQwen3_8B{8.2e9, 2.0 * 36 * 8 * 128 * 2};
inline constexpr Model kQwen25_1_5B{1.5e9, 2.0 * 28 * 2 * 128 * 2};
inline constexpr Model kQwen25_7B{7.6e9, 2.0 * 28 * 4 * 128 * 2};

// One engine on `gpus` of them (tensor parallel) by the roofline: decoding reads weights and KV at
// 70 % of the memory's speed and computes at 40 % of the peak; a step has 4 ms of launches. The KV
// cache has what the weights leave of 85 % of the memory. `slower` multiplies all times of
// decoding: what an experiment fits.
simulator::Hardware engine_of(const Gpu& gpu, const Model& model, int gpus, double slower = 1);
// GPU-seconds that training on a token takes: 8 x parameters operations (forward, backward, and the
// log-probabilities once more) at 35 % of the peak.
double train_gpu_seconds(const Gpu& gpu, const Model& model);

// The log-normal lengths (sigma in all, two thirds of the variance within a prompt) whose mean is
// `mean` once they are cut at `limit`.
simulator::LengthModel lengths_of(double mean, int64_t limit, double sigma);

}  // namespace tailrace::simulate
