// A simulated cluster as values: who works on what, how messages travel, and what goes wrong.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/simulator/hardware.h"

namespace tailrace::simulator {

// Workers that are alike. Several models may name the same pool.
struct PoolModel {
  std::string name = {};  // of the pool; empty: they are in none
  int64_t workers = 1;
  int64_t slots = 64;  // episodes at once, of each
  Hardware hardware = {};
  TransferModel transfer = {};
  // The episodes of a worker act in step: nobody's environment answers before the slowest one's
  // (what a batched environment does).
  bool lockstep = false;
  // Turns of an episode are stored when it has grown by so many tokens since, and by half of what
  // was stored, as a rollout worker does it (rollout.store_turns_tokens); 0: never.
  int64_t store_turns_tokens = 1;
};

// Faults and their rates. A `_mean` is the mean of exponential seconds between two faults of a kind
// (where workers have it, of each of them); 0: there are none. The others are chances or seconds.
struct FaultModel {
  // A process dies. The next one comes `restart` seconds after the death is noticed.
  double rollout_mean = 0, reward_mean = 0, trainer_mean = 0;
  double rank_mean = 0;  // of the trainer's other ranks
  double noticed = 1, restart = 10;
  double unnoticed = 0;  // chance that nobody hears of a death before the next process comes
  double goodbye = 1;    // chance that it says goodbye; else it is only silent
  // Chance that a new rollout worker's process is another machine of the same pool (other slots,
  // where several models name the pool).
  double other_machine = 0;

  // A rollout or reward worker stands still for `hang` seconds. Of a rollout worker that is
  // noticed.
  double hang_mean = 0, hang = 30, hang_noticed = 5;
  double alarm_mean = 0;   // a rollout worker that works is said to stand still, for as long
  double failed_mean = 0;  // a rollout worker says that it cannot go on, and hangs

  // A connection breaks (of any worker) and is made anew after exponential seconds of mean
  // `reconnect`; with a chance of `silent` the scheduler is told meanwhile that it hears nothing.
  double cut_mean = 0, reconnect = 1, silent = 0;

  // A person adds a rollout worker, or takes it away again.
  double join_mean = 0;
  double stop_mean = 0;  // a person stops the run; World::restart() continues it

  // The scheduler's process dies, and is back at once from its journal. With a chance of
  // `power_lost` events and bodies that were not forced to the disk may be gone; with one of
  // `damaged` a body is that a step needs which is not whole.
  double scheduler_mean = 0, power_lost = 0, damaged = 0;
  double pause_mean = 0, pause = 8;  // its machine stands still for `pause` seconds
  double clock_mean = 0;             // its clock is a second back for a moment

  // Chances of an episode: that its environment fails, or that it is said to be lost.
  double env = 0, lost = 0;
  double verifier = 0;  // that a verification fails
  // Chances of staging and of switching: that it fails, or that no answer comes.
  double install = 0, install_silent = 0;
  double source = 0;  // of staging: that the weights cannot come, or only as a difference to others
  double broken_task = 0;  // of a task: that nobody can play it
  // Chances of a trainer that comes back: that its newest checkpoint is damaged, and that training
  // from its checkpoint gives other weights than before.
  double damaged_checkpoint = 0, other_weights = 0;

  double until = std::numeric_limits<double>::infinity();  // seconds; nothing goes wrong later
};

// Between a worker and the scheduler.
struct WireModel {
  double delay = 0.0005;  // seconds of every message to the scheduler
  double spread = 0;      // and an exponential time of this mean more
  double doubled = 0;     // chance that a message comes twice
  double overtaken = 0;   // chance that a message is late, and those behind it are not
  double back = 0;        // mean seconds of what the scheduler says to a worker, exponential
};

struct Cluster {
  std::vector<PoolModel> pools = {PoolModel{}};
  int64_t reward_workers = 1, reward_slots = 16;
  TrainModel trainer = {};
  FaultModel faults = {};
  WireModel wire = {};
  double episode_overhead = 0;  // seconds of every episode, before its first turn
};

}  // namespace tailrace::simulator
