// The facts that decide() must know about a run, and the one place of its defaults (a person's for
// the size of a step are StepOptions'). It is part of the state,
// so that a snapshot replays under the rules it was written under; `restarted` may bring new ones
// (law 2.5).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/state/mode.h"

namespace tailrace {
class OptionVisitor;
}

namespace tailrace::scheduler {

struct DatasetConfig {
  int64_t prompts_per_step = 0;   // q, this dataset's share of P
  int64_t prompts_per_epoch = 0;  // 0: an endless stream (epoch stays 0)
  int64_t epochs = 0;             // 0: cycle until the step limit; no effect on an endless stream
  std::string pool = {};          // whose workers sample it; empty: those of any (law 1.5)
  std::string name = {};          // for people; empty: its number is
  TR_FIELDS(DatasetConfig, prompts_per_step, prompts_per_epoch, epochs, pool, name);
};

// How many failed attempts of one member are tried again, by cause.
struct RetryBounds {
  int64_t env_failed = 2;
  int64_t verifier_failed = 2;
  int64_t lost = 8;       // larger: one dead worker takes many members with it
  int64_t returned = 64;  // larger still: a worker that says goodbye is no failure
  TR_FIELDS(RetryBounds, env_failed, verifier_failed, lost, returned);
};

// How long an answer may take.
struct Deadlines {
  Time lease{std::chrono::seconds(600)};     // of one attempt, all its turns
  Time verify{std::chrono::seconds(60)};     // of one verification
  Time install{std::chrono::seconds(120)};   // then it has failed
  Time reconnect{std::chrono::seconds(15)};  // of a silent worker, also after a restart
  Time save{std::chrono::seconds(120)};      // of the last checkpoint, and of the step before it
  TR_FIELDS(Deadlines, lease, verify, install, reconnect, save);
};

struct EvalOptions {
  int64_t prompts = 0;          // held-out prompts of each dataset; 0: no evaluation
  int64_t group_size = 1;       // members of each
  int64_t interval_steps = 25;  // also every so many versions; 0: only the first and the last
  std::string pool = {};        // whose workers sample it; empty: those of each dataset's (law 1.5)
  // No key: no step is handed over while one runs, since training would take the device, or the
  // cores, from it.
  bool holds_training = false;
  void visit(OptionVisitor& v);
  TR_FIELDS(EvalOptions, prompts, group_size, interval_steps, pool, holds_training);
};

// When checkpoints are asked for. Its key stands in the section `checkpoint`.
struct SaveOptions {
  int64_t interval_steps = 50;  // versions from one to the next
  void visit(OptionVisitor& v);
  TR_FIELDS(SaveOptions, interval_steps);
};

// Which published weights are kept. Its keys stand in the section `weights`.
struct WeightsOptions {
  int64_t keep = 3;              // of the newest versions
  bool keep_sampled = true;      // and all that stored samples name
  int64_t anchor_interval = 10;  // of versions that are kept for that: from a whole one to the next
  void visit(OptionVisitor& v);
};

// When one worker is kept from work, and for how long (law 7.3).
struct QuarantineConfig {
  int64_t faults = 3;                   // in a row, without a good answer between
  Time first{std::chrono::seconds(1)};  // doubles each time in a row
  Time longest{std::chrono::seconds(60)};
  int64_t limit = 5;  // so many in a row of everybody who could do the work: halt
  TR_FIELDS(QuarantineConfig, faults, first, longest, limit);
};

// When environments or verifiers fail everywhere (law 7.6).
struct BreakerConfig {
  int64_t window = 64;  // the last so many attempts, but at least four a worker; 0: no breaker
  // More than this part of them failed for one cause, at more than half of the workers and of the
  // tasks: halt.
  double share = 0.5;
  TR_FIELDS(BreakerConfig, window, share);
};

struct Config {
  Mode mode;
  std::vector<DatasetConfig> datasets{DatasetConfig{.prompts_per_step = 1}};
  int64_t group_size = 1;
  int64_t steps = 0;                 // 0: until the data ends
  int32_t trainer_ranks = 1;         // workers that train a policy together (law 8.7)
  bool replace_zero_signal = false;  // groups of equal rewards are replaced (dynamic sampling)
  // A step may sample of each dataset so many times what it keeps before it takes such groups as
  // they are (law 3.9); 0: no bound.
  int64_t max_gen_batches = 10;
  RetryBounds retries;
  Deadlines deadlines;
  EvalOptions eval;
  SaveOptions save;
  int64_t keep_weights = 3;  // newest versions whose published weights are kept
  bool keep_sampled = true;  // and those of all versions that stored samples name (law 9.8)
  QuarantineConfig quarantine;
  BreakerConfig breaker;

  int64_t prompts_per_step() const;  // P, over all datasets

  // Whose workers sample the dataset in this lane; empty: those of any pool (law 1.5).
  const std::string& pool_of(Lane lane, int32_t dataset) const;
  // Some dataset goes to this pool alone, in one lane or the other.
  bool binds(const std::string& pool) const;

  // The version is to be evaluated, whether or not it is the last one (law 10.1).
  bool evaluates(int64_t version) const;

  // How many members of a group must have a reward, when no more can come, for it to train: one
  // sample has no group statistics to be compared with, unless groups are of one.
  int64_t members_needed() const;

  // Throws UserError with the key as a config file has it: impossible combinations, and modes that
  // could stand still (law 5.3).
  void validate() const;

  TR_FIELDS(Config, mode, datasets, group_size, steps, trainer_ranks, replace_zero_signal,
            max_gen_batches, retries, deadlines, eval, save, keep_weights, keep_sampled, quarantine,
            breaker);
};

}  // namespace tailrace::scheduler
