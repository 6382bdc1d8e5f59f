// A made-up cluster around decide(): rollout workers, reward workers and a trainer that take the
// time their models say, a wire that delays, doubles and reorders, and faults. Its clock is
// virtual, and it runs the production scheduler: what the service does with messages, a world does
// with events. The same law, cluster, episodes and seed give the same run to the last bit.
//
// What is not modelled: bodies take no time to be stored, and no memory; the disk of the scheduler
// takes none.
//
// Thread: one at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/random.h"
#include "scheduler/decide/decide.h"
#include "scheduler/simulator/engine.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/hardware.h"
#include "scheduler/state/config.h"
#include "scheduler/state/state.h"

namespace tailrace::simulator {

inline constexpr const char* kTrainerName = "trainer-0";

// Workers that are alike.
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

// Seconds between two faults of one worker are exponential with this mean; 0: it has none.
struct FaultModel {
  double rollout_mean = 0;  // its process dies
  double hang_mean = 0;     // a rollout worker stands still for `hang` seconds, and is seen to
  double trainer_mean = 0;
  double noticed = 1;   // seconds from a death until the scheduler hears of it
  double restart = 10;  // and until a new process is there
  double hang = 30, hang_noticed = 5;
  // Chances: that an episode's environment fails, a verifier does, an install does, and that a
  // task of a dataset with rows is one that nobody can play.
  double env = 0, verifier = 0, install = 0, broken_task = 0;
};

// Nothing goes through a map that is hashed by it, so that its order reaches nobody.
struct BodyHash {
  size_t operator()(const BodyId& id) const {
    const MemberId& member = id.lease.member;
    return tailrace::mix(
        {static_cast<uint64_t>(member.prompt), static_cast<uint64_t>(member.epoch),
         static_cast<uint64_t>(id.lane) << 32 ^ static_cast<uint64_t>(member.domain),
         static_cast<uint64_t>(member.policy) << 32 ^ static_cast<uint64_t>(member.member),
         static_cast<uint64_t>(member.launch) << 32 ^ static_cast<uint64_t>(id.lease.attempt),
         static_cast<uint64_t>(id.turns)});
  }
};

// Between a worker and the scheduler.
struct WireModel {
  double delay = 0.0005;  // seconds of every message
  double spread = 0;      // and an exponential time of this mean more
  double doubled = 0;     // chance that a message comes twice
};

struct Cluster {
  std::vector<PoolModel> pools = {PoolModel{}};
  int64_t reward_workers = 1, reward_slots = 16;
  TrainModel trainer = {};
  FaultModel faults = {};
  WireModel wire = {};
  double episode_overhead = 0;  // seconds of every episode, before its first turn
};

// A sample that a step trains, or that none does.
struct Sample {
  Lane lane = Lane::kTrain;
  MemberId member = {};
  int64_t prompt_tokens = 0, tokens = 0, turns = 0;
  int64_t min_version = -1, max_version = -1;
  // Tokens by the version that sampled them, oldest first.
  std::vector<std::pair<int64_t, int64_t>> versions;
  double begun = 0, ended = 0;  // seconds
};

// One step. Times are seconds of the world's clock.
struct StepRecord {
  int64_t step = 0;
  double begun = 0;   // the version before it was published
  double handed = 0;  // the trainer had all of it
  double ended = 0;   // its version was published
  int64_t samples = 0, tokens = 0, prompt_tokens = 0;
  int64_t old_tokens = 0;  // sampled by versions before the one that the step starts from
  double staleness_mean = 0, staleness_max = 0;  // of samples, in versions
  int64_t longest = 0;                           // tokens of a sample
};

class World {
 public:
  // Borrows `episodes`.
  World(scheduler::Config law, Cluster cluster, const EpisodeSource& episodes, uint64_t seed);
  World(const World&) = delete;

  // Called after each decision.
  std::function<void(const scheduler::Event&, const scheduler::Actions&, const scheduler::State&)>
      observe;
  // Called when a step is published, with what it trained.
  std::function<void(const StepRecord&, const std::vector<Sample>&)> on_step;
  // Called with each sample that ended, trained or not.
  std::function<void(const Sample&)> on_sample;

  enum class Stop : uint8_t { kEnded, kHalted, kTime, kSteps, kStuck };
  // Goes on until the run ends, the clock stands at `until` seconds, or so many steps more are
  // published (0: any number). kStuck: nothing would ever happen again.
  Stop run(double until, int64_t steps = 0);

  const scheduler::State& state() const { return state_; }
  double now() const { return seconds_of(now_); }
  const std::vector<StepRecord>& steps() const { return steps_; }

  struct Totals {
    int64_t events = 0;               // decided
    int64_t samples = 0, tokens = 0;  // that ended, wherever they went
    int64_t trained_tokens = 0;
    double generated = 0, prefilled = 0;      // tokens of all engines
    double engine_busy = 0, engine_time = 0;  // seconds of all engines
    double sequence_seconds = 0, slot_seconds = 0;
    double trainer_busy = 0;
    int64_t preemptions = 0, deaths = 0;
    double price = 0;
  };
  // Up to now.
  Totals totals();

 private:
  enum class WakeKind : uint8_t { kEngine, kPlay, kMessage, kTick, kTrained, kFault, kCall };
  struct Wake {
    Time at{};
    uint64_t order = 0;
    WakeKind kind = WakeKind::kTick;
    int32_t worker = 0;
    int64_t id = 0;  // a generation, a play, a message
    friend bool operator>(const Wake& a, const Wake& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  enum class Phase : uint8_t { kHeld, kReset, kDecoding, kAtBarrier, kEnv };
  struct Play {
    scheduler::Grant grant;
    Episode episode;
    Phase phase = Phase::kHeld;
    size_t turn = 0;
    int64_t context = 0;
    double counted = 0;  // tokens of this turn that are in `sample` already
    int64_t stored = 0;  // its context when turns were stored last
    bool fails = false;
    bool cached = false;  // its prompt counts among those of the worker's cache
    Sample sample;
  };
  struct Rollout {
    WorkerId id;
    const PoolModel* pool = nullptr;
    Engine engine;
    bool alive = false, hangs = false;
    uint64_t session = 0, incarnation = 0;
    int64_t life = 0;        // what was said before it is void
    int64_t generation = 0;  // of the engine's wake
    int64_t version = -1;
    std::optional<scheduler::Stage> staged;
    std::map<BodyId, int64_t> by_lease;
    std::map<int64_t, Play> plays;
    std::map<TaskId, int64_t> prompts;  // how many of each are in its cache
    Engine::Totals before;              // of the engines of its processes that died
  };
  struct Trainer {
    bool alive = false;
    uint64_t session = 0, incarnation = 0;
    int64_t life = 0;
    int64_t version = -1, durable = -1;
    int64_t step = 0;  // of the batch that it has
    std::vector<scheduler::HandOver::Item> items;
    bool whole = false;
    double free_at = 0;  // when what it has been given is computed
    double handed = 0;
    double busy = 0;
  };

  void tell(const scheduler::Event& event);
  void act(const scheduler::Action& action);
  void wake(double seconds, WakeKind kind, int32_t worker = 0, int64_t id = 0);
  void send(const WorkerId& from, scheduler::Event event);  // over the wire
  void call(double seconds, std::function<void()> what);
  void fire(const Wake& wake);
  void arm_tick();

  // rollout.cc
  void start_rollout(int32_t index);
  void connect_rollout(int32_t index);
  void kill_rollout(int32_t index);
  void hang_rollout(int32_t index);
  void grant(int32_t index, const scheduler::Grant& grant);
  void start_play(int32_t index, int64_t id);
  void begin_turn(int32_t index, int64_t id);
  void end_decoding(int32_t index, int64_t id);
  void end_turn(int32_t index, int64_t id);
  void store_turns(const Rollout& worker, Play& play);
  void finish(int32_t index, int64_t id, Outcome outcome);
  void drop_play(int32_t index, int64_t id);
  void lift_barrier(int32_t index);
  void advance(int32_t index);
  void arm_engine(int32_t index);
  void count_tokens(Rollout& worker, int64_t id, Play& play);
  void stage(int32_t index, const scheduler::Stage& stage);
  void switch_over(int32_t index, const scheduler::Switch& change);

  // trainer.cc
  void start_trainer();
  void kill_trainer();
  void take(const scheduler::HandOver& batch);
  void publish(int64_t version);
  void record_step(int64_t version);
  void verify(const scheduler::Verify& verify);

  double exponential(double mean) { return -mean * std::log(1 - rng_.uniform()); }
  bool is_broken(Lane lane, const MemberId& member) const;

  scheduler::State state_;
  Cluster cluster_;
  const EpisodeSource& episodes_;
  uint64_t seed_;
  Rng rng_;  // of faults and of the wire
  Time now_{};
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
  uint64_t orders_ = 0;
  Time tick_ = Time::max();  // the earliest that is armed
  std::unordered_map<int64_t, scheduler::Event> messages_;
  std::unordered_map<int64_t, std::function<void()>> calls_;
  std::map<WorkerId, double> last_said_;  // when the last of it comes
  int64_t last_id_ = 0;
  uint64_t incarnations_ = 0, sessions_ = 0;
  std::vector<Rollout> rollouts_;
  std::map<WorkerId, int32_t> by_name_;
  std::map<std::string, double> shared_link_free_;
  std::map<WorkerId, uint64_t> reward_sessions_;
  Trainer trainer_;
  std::unordered_map<BodyId, Sample, BodyHash> bodies_;
  std::unordered_map<BodyId, Sample, BodyHash> turns_;
  std::vector<StepRecord> steps_;
  double published_at_ = 0;
  Totals totals_;
};

}  // namespace tailrace::simulator
