// The scheduler's keys in a configuration file, and the Config that they make.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/options.h"
#include "scheduler/config.h"

namespace tailrace::scheduler {

struct EvalOptions {
  int64_t prompts = 0;
  int64_t group_size = 1;
  int64_t interval_steps = 25;

  void visit(OptionVisitor& v) {
    v.field(
        "prompts", prompts,
        {.help = "held-out prompts of an evaluation; 0: none", .min = 0, .aliases = {"episodes"}});
    v.field("group_size", group_size,
            {.help = "samples of each held-out prompt", .min = 1, .aliases = {"n"}});
    v.field("interval_steps", interval_steps,
            {.help = "evaluate every so many steps, and before the first and after the last; 0: "
                     "only those two",
             .min = 0,
             .aliases = {"test_freq", "eval_interval", "val_period"}});
  }
};

struct SchedulerOptions {
  int64_t prompts_per_step = 64;
  int64_t group_size = 8;
  int64_t steps = 0;
  int64_t epochs = 0;
  bool replace_zero_signal = false;
  int64_t retries_env_failed = 2;
  int64_t retries_verifier_failed = 2;
  int64_t retries_lost = 8;
  double lease_seconds = 600;
  double verify_seconds = 60;
  double install_seconds = 120;
  int64_t breaker_window = 64;
  double breaker_share_ratio = 0.5;
  int64_t store_segment_bytes = int64_t{64} << 20;
  int64_t journal_segment_bytes = int64_t{16} << 20;

  void visit(OptionVisitor& v) {
    // The first four come from `rollout` and `run`, where people look for them; cli fills them in.
    v.field(
        "replace_zero_signal", replace_zero_signal,
        {.help = "replace groups whose rewards are all equal by fresh prompts (dynamic sampling)"});
    v.field("retries_env_failed", retries_env_failed,
            {.help = "how often a sample is tried again after its environment failed", .min = 0});
    v.field("retries_verifier_failed", retries_verifier_failed,
            {.help = "how often a sample is verified again after its verifier failed", .min = 0});
    v.field("retries_lost", retries_lost,
            {.help = "how often a sample is tried again after its worker was lost", .min = 0});
    v.field("lease_seconds", lease_seconds,
            {.help = "longest time for one sample, all its turns", .min = 0.001});
    v.field("verify_seconds", verify_seconds,
            {.help = "longest time for one verification", .min = 0.001});
    v.field("install_seconds", install_seconds,
            {.help = "longest time for one weight install", .min = 0.001});
    v.field("breaker_window", breaker_window,
            {.help = "the breaker looks at the last so many attempts; 0: no breaker", .min = 0});
    v.field("breaker_share_ratio", breaker_share_ratio,
            {.help = "and halts the run when more than this part of them failed for one cause",
             .min = 0,
             .max = 1});
    v.field("store_segment_bytes", store_segment_bytes,
            {.help = "size of a file of the trajectory store", .min = 4096});
    v.field("journal_segment_bytes", journal_segment_bytes,
            {.help = "the journal begins a new file, with a snapshot, after so many bytes",
             .min = 4096});
  }
};

// `domain_prompts`: prompts per epoch of each domain, 0 for an endless stream. The prompts of a
// step are dealt to the domains evenly, the first ones getting the rest. Throws UserError as
// Config::validate does.
Config make_config(const SchedulerOptions& options, const EvalOptions& eval,
                   const std::vector<int64_t>& domain_prompts);

}  // namespace tailrace::scheduler
