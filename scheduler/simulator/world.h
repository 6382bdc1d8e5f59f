// A made-up cluster around decide(): rollout workers, reward workers and a trainer that take the
// time their models say, a wire that delays, doubles and reorders, a journal, and faults. Its clock
// is virtual, and it runs the production scheduler: what the service does with messages, a world
// does with events. The same law, cluster, episodes and seed give the same run to the last bit.
//
// What is not modelled: bodies take no time to be stored, and no memory; the disk of the scheduler
// takes none.
//
// Thread: one at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/random.h"
#include "scheduler/decide/decide.h"
#include "scheduler/simulator/cluster.h"
#include "scheduler/simulator/engine.h"
#include "scheduler/simulator/episodes.h"
#include "scheduler/simulator/hardware.h"
#include "scheduler/state/config.h"
#include "scheduler/state/state.h"

namespace tailrace::simulator {

inline constexpr const char* kTrainerName = "trainer-0";

// Nothing goes through a map that is hashed by it, so that its order reaches nobody.
struct BodyHash {
  size_t operator()(const BodyId& id) const {
    const MemberId& member = id.lease.member;
    return tailrace::mix(
        {static_cast<uint64_t>(member.prompt), static_cast<uint64_t>(member.epoch),
         static_cast<uint64_t>(id.lane) << 32 ^ static_cast<uint64_t>(member.dataset),
         static_cast<uint64_t>(member.policy) << 32 ^ static_cast<uint64_t>(member.member),
         static_cast<uint64_t>(member.launch) << 32 ^ static_cast<uint64_t>(id.lease.attempt),
         static_cast<uint64_t>(id.turns)});
  }
};

// A sample that a step trains, or that none does.
struct Sample {
  Lane lane = Lane::kTrain;
  MemberId member = {};
  int64_t prompt_tokens = 0, tokens = 0, turns = 0;
  int64_t env_tokens = 0;  // of the environment's answers
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
  int64_t samples = 0, tokens = 0;
  int64_t prompt_tokens = 0;  // and those of the environments
  int64_t old_tokens = 0;     // sampled by versions before the one that the step starts from
  double staleness_mean = 0, staleness_max = 0;  // of samples, in versions
  int64_t longest = 0;                           // tokens of a sample
};

class World {
 public:
  // Borrows `episodes`.
  World(scheduler::Config law, Cluster cluster, const EpisodeSource& episodes, uint64_t seed);
  World(const World&) = delete;

  // Called before each decision, with the state and the time that it is made at.
  std::function<void(const scheduler::State& before, const scheduler::Event&, Time at)> before;
  // Called after each decision, before anybody hears of the actions.
  std::function<void(const scheduler::Event&, const scheduler::Actions&, const scheduler::State&)>
      observe;
  // Called when something goes wrong, or a person does something: "power lost", "joined".
  std::function<void(std::string_view what)> on_fault;
  // Called when the scheduler is back from its journal, before it decides anything: what its state
  // was, and how many events it has forgotten. state() is what it knows now.
  std::function<void(const scheduler::State& before, int64_t forgotten)> on_restart;
  // New rules, if a person changes them while the scheduler is away.
  std::function<std::optional<scheduler::Config>(const scheduler::State&)> new_rules;
  // The work of workers with weights, where somebody does it for them. Each may kill() whomever it
  // likes, also the worker itself, which then says nothing.
  struct Hands {
    // Ends a staging, and a switch. The cause: it has failed.
    std::function<std::optional<InstallCause>(const WorkerId&, const scheduler::Stage&)> stage;
    std::function<std::optional<InstallCause>(const WorkerId&, const scheduler::Switch&)> switch_to;
    // The trainer puts a version where others may fetch it, and lets versions go.
    std::function<void(int64_t version, const Digest& root)> publish;
    std::function<void(const scheduler::ReleaseWeights&)> release;
    std::function<void(const WorkerId&)> on_death;
  };
  Hands hands;
  // kill -9 of a worker; another process comes in its place, as after any death.
  void kill(const WorkerId& worker);
  bool is_alive(const WorkerId& worker) const;

  // Called when a step is published, with what it trained.
  std::function<void(const StepRecord&, const std::vector<Sample>&)> on_step;
  // Called with each sample that ended, trained or not.
  std::function<void(const Sample&)> on_sample;

  enum class Stop : uint8_t { kEnded, kHalted, kTime, kSteps, kStuck };
  // Goes on until the run ends, the clock stands at `until` seconds, or so many steps more are
  // published (0: any number). kStuck: nothing would ever happen again.
  Stop run(double until, int64_t steps = 0);
  // Goes on for so many seconds, although the run may have ended or halted.
  void linger(double seconds);
  // The scheduler begins again where it stopped: a run that has ended by a stop, or has halted,
  // goes on, and one that ended may, by new_rules.
  void restart() { restart(/*power_lost=*/false); }

  const scheduler::State& state() const { return state_; }
  double now() const { return seconds_of(now_); }
  const std::vector<StepRecord>& steps() const { return steps_; }
  // The digest that a rollout worker has staged last, whether the scheduler has heard of it or not.
  Digest staged(const WorkerId& worker) const;
  // The trainer has the weights of this version on its disk, as published.
  bool has_published(int64_t version) const { return published_weights_.contains(version); }
  // Whether somebody stands still, said or not.
  bool hangs(const WorkerId& worker) const;

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
  enum class WakeKind : uint8_t { kEngine, kPlay, kMessage, kTrainerSays, kTick, kTrained, kCall };
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
  // A worker of any role.
  struct Process {
    WorkerId id = {};
    Role role = Role::kRollout;
    int32_t index = 0;  // among those of its role; of a trainer its rank
    bool joined = false;
    bool alive = false, connected = false;
    uint64_t session = 0, incarnation = 0;
    int64_t life = 0;  // of the process: what one that has ended was about is void
    int64_t link = 0;  // of the connection: answers that were on a broken one are void
    Time hangs_until{};
    double said = 0, heard = 0;  // when the latest message of it, and to it, comes
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
    std::optional<Outcome> fails;
    Sample sample;
  };
  struct Rollout : Process {
    const PoolModel* pool = nullptr;
    Engine engine;
    int64_t generation = 0;  // of the engine's wake
    int64_t version = -1;
    int64_t staging = 0;  // the latest Stage that it was told
    std::optional<scheduler::Stage> staged;
    std::map<BodyId, int64_t> by_lease;
    std::map<int64_t, Play> plays;
    Engine::Totals before;  // of the engines of its processes that died
  };
  struct RewardWorker : Process {
    std::set<std::pair<BodyId, int32_t>> asked;  // verifications that it has not answered
  };
  struct Rank : Process {
    uint64_t formation = 0;  // 0: it has met nobody
    int64_t step = 0;        // of the batch that it has; of a rank beside 0 only whole
  };
  struct Trainer : Rank {
    int64_t version = -1;
    std::deque<int64_t> checkpoints;  // oldest first
    std::vector<scheduler::HandOver::Item> items;
    bool whole = false, computed = false;
    int64_t work = 0;         // raised by each list that it begins: the end of another one is void
    double free_at = 0;       // when what it has been given is computed
    double save_ends = 0;     // of its latest checkpoint
    int64_t save_asked = -1;  // in the midst of a step
    double handed = 0;
    double busy = 0;
    // The trainer's messages come in order, and again until they are acknowledged.
    std::deque<std::pair<Time, scheduler::Event>> outbox;
    std::vector<scheduler::Event> unacknowledged;
  };
  struct Message {
    const Process* from = nullptr;  // null: the scheduler's own process
    int64_t link = 0;
    scheduler::Event event;
    std::optional<Sample> body;
  };
  struct Written {
    std::string event;
    Time at{};
  };

  void tell(const scheduler::Event& event) { tell(event, now_); }
  void tell(const scheduler::Event& event, Time at);
  void act(const scheduler::Action& action);
  void wake(double seconds, WakeKind kind, int32_t worker = 0, int64_t id = 0);
  void call(double seconds, std::function<void()> what);
  // The same, unless the process has ended by then; and later, while it hangs.
  void call_on(Process& process, double seconds, std::function<void()> what);
  void fire(const Wake& wake);
  void arm_tick();
  // Over the wire, and from the scheduler's own process.
  void send(Process& from, scheduler::Event event, std::optional<Sample> body = {});
  void send_self(scheduler::Event event);
  void deliver(Message message);
  double delay();
  Process* find(const WorkerId& id, uint64_t session);
  template <class A>
  void say(const A& message);

  // The reaction of a worker to each message.
  void hear(Process& process, const scheduler::Hold& hold);
  void hear(Process& process, const scheduler::Grant& grant);
  void hear(Process& process, const scheduler::Abort& abort);
  void hear(Process& process, const scheduler::Verify& verify);
  void hear(Process& process, const scheduler::Stage& stage);
  void tell_progress(Rollout& worker, const scheduler::Stage& stage, double begins, double ready);
  void hear(Process& process, const scheduler::Switch& change);
  void hear(Process& process, const scheduler::HandOver& batch);
  void hear(Process& process, const scheduler::Save& save);
  void hear(Process& process, const scheduler::ReleaseWeights& release);
  void hear(Process& process, const scheduler::FormRanks& ranks);

  // processes.cc
  void start(Process& process);
  void connect(Process& process);
  void kill(Process& process);
  std::vector<Process*> processes();

  // faults.cc
  void arm_faults();
  // Again and again; the next one is drawn `pause` seconds after the one before.
  void repeat(double mean, std::function<void()> fault, double pause = 0);
  void fault(std::string_view what) const {
    if (on_fault) on_fault(what);
  }
  bool chance(double p) { return p > 0 && now() < cluster_.faults.until && rng_.chance(p); }
  void cut(Process& process);
  void hang(Process& process);
  void alarm(Rollout& worker);
  void tell_stalled(Rollout& worker, bool stalled);
  void fail(Rollout& worker);
  void join_or_leave(Rollout& worker);

  // journal.cc
  void write(const scheduler::Event& event, Time at, const scheduler::Actions& actions);
  void restart(bool power_lost);
  void lose_power();
  void damage_a_part();
  void find_lost_bodies();

  // rollout.cc
  void clear(Rollout& worker);
  void start_play(Rollout& worker, int64_t id);
  static Engine::Prompt prompt_of(const Play& play);
  void begin_turn(Rollout& worker, int64_t id);
  void end_decoding(Rollout& worker, int64_t id);
  void end_turn(Rollout& worker, int64_t id);
  void store_turns(Rollout& worker, Play& play);
  void finish(Rollout& worker, int64_t id, Outcome outcome);
  void drop_play(Rollout& worker, int64_t id);
  void lift_barrier(Rollout& worker);
  void advance(Rollout& worker);
  void arm_engine(Rollout& worker);
  void count_tokens(Rollout& worker, int64_t id, Play& play);

  // trainer.cc
  void clear_batch();
  double still_to_compute() const;
  bool come_back();  // false: it has died again
  bool put_weights(int64_t version);
  void greet();
  void say_as_trainer(scheduler::Event event);
  void hear_trainer();
  void end_step();
  void publish(int64_t version);
  void begin_save(int64_t version);
  void save(int64_t version);
  // The digest of the published weights, and of the trained ones.
  const Digest& digest_of(int64_t version);
  Digest master_of(int64_t version);
  void record_step(int64_t version);

  // Rounded up: what is due at a time is due when its wake comes.
  // What lies further off than the clock counts never comes: every run is over by then.
  static Time to_time(double seconds) {
    constexpr double kNever = 9e9;  // seconds: some 285 years
    return Time(static_cast<int64_t>(std::ceil((seconds < kNever ? seconds : kNever) * 1e9)));
  }
  double exponential(double mean) { return -mean * std::log(1 - rng_.uniform()); }
  bool is_broken(const scheduler::Grant& grant) const;

  scheduler::State state_;
  Cluster cluster_;
  const EpisodeSource& episodes_;
  uint64_t seed_;
  Rng rng_;  // of faults and of the wire
  Time now_{};
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes_;
  uint64_t orders_ = 0;
  Time tick_ = Time::max();  // the earliest that is armed
  std::unordered_map<int64_t, Message> messages_;
  std::unordered_map<int64_t, std::function<void()>> calls_;
  int64_t last_id_ = 0;
  uint64_t incarnations_ = 0, sessions_ = 0;
  // None is added or moved behind the constructor.
  std::vector<Rollout> rollouts_;
  std::vector<RewardWorker> rewards_;
  std::vector<Rank> ranks_;  // of the trainer, from 1
  Trainer trainer_;
  std::unordered_map<WorkerId, Process*> by_name_;
  std::map<std::string, double> shared_link_free_;
  std::map<int64_t, Digest> digests_;
  std::map<int64_t, int64_t> masters_;   // the lineage that trained it
  std::set<int64_t> published_weights_;  // of the trainer, on its disk
  int64_t lineages_ = 0;
  std::unordered_map<BodyId, Sample, BodyHash> bodies_, turns_;  // in the store
  // The journal, where the scheduler may die: a snapshot, and the events since.
  bool keeps_journal_ = false;
  std::string snapshot_;
  std::vector<Written> journal_;
  size_t forced_ = 0;  // of these are on the disk
  std::set<BodyId> unforced_bodies_;
  int64_t restarts_ = 0;
  std::vector<StepRecord> steps_;
  double published_at_ = 0;
  Totals totals_;
};

}  // namespace tailrace::simulator
