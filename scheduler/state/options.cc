#include "scheduler/state/options.h"

#include "core/config/options.h"
#include "scheduler/state/quotas.h"

namespace tailrace::scheduler {
namespace {

constexpr double kMaxGroup = 65536;
constexpr double kMaxTries = 1e6;  // retries, faults, attempts that the breaker sees
constexpr double kMaxFileBytes = int64_t{1} << 40;

// A person writes seconds.
void seconds_field(OptionVisitor& v, std::string_view key, Time& value, std::string_view help,
                   double least = 0.001) {
  using Seconds = std::chrono::duration<double>;
  double seconds = Seconds(value).count();
  // 1e8 s are three years: in nanoseconds far from the limit of Time, also when a deadline is added
  // to the time of a state.
  v.field(key, seconds, {.help = help, .min = least, .max = 1e8, .resume = Resume::kMayChange});
  value = std::chrono::duration_cast<Time>(Seconds(seconds));
}

}  // namespace

void EvalOptions::visit(OptionVisitor& v) {
  v.field("prompts", prompts,
          {.help = "held-out prompts of an evaluation, of each dataset; 0: none",
           .min = 0,
           .max = kMaxPrompts,
           .resume = Resume::kMayChange});
  v.field("group_size", group_size,
          {.help = "samples of each held-out prompt",
           .min = 1,
           .max = kMaxGroup,
           .resume = Resume::kMayChange});
  v.field("interval_steps", interval_steps,
          {.help = "evaluate every so many steps, and before the first and after the last; 0: "
                   "only those two",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
  v.field("pool", pool,
          {.help = "the pool of rollout workers (rollout.pools) that samples the held-out prompts: "
                   "no other worker stays at a version for its evaluation. Empty: the pool of "
                   "each dataset, or any",
           .resume = Resume::kMayChange,
           .idle = idle_if(prompts == 0, "nothing is evaluated", {"prompts"})});
}

// Fixed for the life of a run: groups and batches of this size are in its state.
void StepOptions::visit(OptionVisitor& v) {
  v.field("prompts_per_step", prompts_per_step,
          {.help = "prompts consumed by one step", .min = 1, .max = kMaxPrompts});
  v.field(
      "group_size", group_size,
      {.help = "samples of each prompt, which most advantages compare; 1 with algo.advantage gae "
               "or reward",
       .min = 1,
       .max = kMaxGroup});
}

void SaveOptions::visit(OptionVisitor& v) {
  v.field("interval_steps", interval_steps,
          {.help = "steps from one checkpoint to the next; the last step always makes one",
           .min = 1,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
}

// The second is what a run promises of all its samples, from the first on.
void WeightsOptions::visit(OptionVisitor& v) {
  v.field("keep", keep,
          {.help = "payloads of so many newest versions stay in RUN/weights, and that of "
                   "the version that is evaluated",
           .min = 2,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
  v.field(
      "keep_sampled", keep_sampled,
      {.help = "keep each version that a stored sample was sampled by: older ones as deltas, from "
               "which they are made again. Where nobody gives it: true for versions of at most 64 "
               "MiB"});
  v.field(
      "anchor_interval", anchor_interval,
      {.help = "of the versions behind those of weights.keep, every so many keep their payload, "
               "from which deltas lead on",
       .min = 1,
       .max = kMaxCount,
       .resume = Resume::kMayChange});
}

void SchedulerOptions::visit(OptionVisitor& v) {
  mode.visit(v);
  v.field(
      "replace_zero_signal", replace_zero_signal,
      {.help = "replace groups whose rewards are all equal by fresh prompts (dynamic sampling)"});
  v.field(
      "max_gen_batches", max_gen_batches,
      {.help = "a step samples at most so many times its prompts of each dataset to find groups "
               "with a signal (DAPO's rounds); those that come after are taken as they are; "
               "0: no bound, and a task that is solved is sampled for ever",
       .min = 0,
       .max = kMaxCount,
       .resume = Resume::kMayChange,
       .idle = idle_if(!replace_zero_signal, "no group is replaced", {"replace_zero_signal"})});
  v.field("retries_env_failed", retries.env_failed,
          {.help = "how often a sample is tried again after its environment failed",
           .min = 0,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  v.field("retries_verifier_failed", retries.verifier_failed,
          {.help = "how often a sample is verified again after its verifier failed",
           .min = 0,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  v.field("retries_lost", retries.lost,
          {.help = "how often a sample is tried again after its worker was lost",
           .min = 0,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  v.field("retries_returned", retries.returned,
          {.help = "how often a sample is given again after its worker said goodbye",
           .min = 0,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  seconds_field(v, "lease_seconds", deadlines.lease,
                "longest time for one sample, from its grant or its last stored turn");
  seconds_field(v, "verify_seconds", deadlines.verify, "longest time for one verification");
  seconds_field(v, "install_seconds", deadlines.install, "longest time for one weight install");
  seconds_field(v, "reconnect_seconds", deadlines.reconnect,
                "how long a silent worker keeps its work, also after a restart of the scheduler");
  seconds_field(v, "no_progress_seconds", no_progress,
                "a rollout worker that holds samples and computes nothing for so long is passed "
                "over, and its samples go to others that have room; time that environments take "
                "does not count. Its heartbeats say it twice a second. 0: never",
                0);
  // One key for two waits: a stop gives the step that is being trained as long as its checkpoint.
  seconds_field(v, "save_seconds", deadlines.save,
                "longest time for the last checkpoint of a run, and for the step before a stop");
  v.field("quarantine_faults", quarantine.faults,
          {.help = "a worker with so many faults in a row gets no work for a while",
           .min = 1,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  seconds_field(v, "quarantine_seconds", quarantine.first,
                "for how long at first; the time doubles while it goes on. As long a sample that "
                "is tried again stays away from the worker that failed it");
  seconds_field(v, "quarantine_longest_seconds", quarantine.longest, "but it is never longer");
  v.field("quarantine_limit", quarantine.limit,
          {.help = "the run halts when every worker of a role was given up so often in a row",
           .min = 1,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  v.field("breaker_window", breaker.window,
          {.help = "the breaker looks at the last so many attempts, but at least at four for each "
                   "worker that it judges; 0: no breaker",
           .min = 0,
           .max = kMaxTries,
           .resume = Resume::kMayChange});
  v.field(
      "breaker_share_ratio", breaker.share,
      {.help = "and halts the run when more than this part of them failed for one cause, at more "
               "than half of the workers and of the prompts",
       .min = 0,
       .max = 1,
       .resume = Resume::kMayChange,
       .idle = idle_if(breaker.window == 0, "{breaker_window} is 0", {"breaker_window"})});
  v.field("store_segment_bytes", storage.store_bytes,
          {.help = "size of a file of the trajectory store", .min = 4096, .max = kMaxFileBytes});
  v.field("journal_segment_bytes", storage.journal_bytes,
          {.help = "the journal begins a new file, with a snapshot, after so many bytes",
           .min = 4096,
           .max = kMaxFileBytes});
  v.field("archive", storage.archive,
          {.help = "keep the whole journal, so that the run can be replayed from its start"});
  v.field("timeline_rows", storage.timeline_rows,
          {.help = "rows of timeline.jsonl (some 300 bytes each) that a step writes of what its "
                   "workers do; beyond them one a worker. 0: no timeline",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
}

Config make_config(const SchedulerOptions& options, const StepOptions& step,
                   const EvalOptions& eval, const SaveOptions& save, const WeightsOptions& weights,
                   const RunShape& run) {
  Config config;
  config.datasets = run.datasets;
  config.mode = options.mode.mode();
  config.group_size = step.group_size;
  config.steps = run.steps;
  config.trainer_ranks = run.trainer_ranks;
  config.save = save;
  config.keep_weights = weights.keep;
  config.keep_sampled = weights.keep_sampled;
  config.replace_zero_signal = options.replace_zero_signal;
  config.max_gen_batches = options.max_gen_batches;
  config.retries = options.retries;
  config.deadlines = options.deadlines;
  config.eval = eval;
  config.quarantine = options.quarantine;
  config.breaker = options.breaker;
  // The service does it again; here the error comes with its key, before anything is started.
  config.validate();
  return config;
}

}  // namespace tailrace::scheduler
