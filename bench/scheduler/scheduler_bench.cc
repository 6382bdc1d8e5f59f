// The scheduler's state machine by itself: events a second that decide() answers, each with the
// question when to tick next, as the service asks. In a simulated world workers sample, a trainer
// trains, checkpoints are written and weights installed; half of the members in flight run, half
// wait for a slot. Once more with what a long run has besides: workers die with work in hand and
// come back, links break and are made anew, and each second version is evaluated.
//
// Its events are decided on once more, when the world is gone, on a state that was read back, as a
// scheduler has it that has started again. Beside a simulated cluster the parts of the state lie
// scattered among those of the world, and an event took a third longer there: that was a measure of
// the bench.
//
// And what a snapshot costs the one who decides, with the journal on a real disk: how long it
// pauses for one that is written in place, and for a cut, whose snapshot is written beside it. Both
// are taken in turn, so that others on the machine slow both down. Seconds on the wall: a pause is
// one.
//
// And single events that touch as much in a large state as in a small one (law 14.5), each at two
// sizes: a worker that goes or comes back, a part of a streamed step, a held-out member that
// settles.
//
// Checked: the state is sound at the end of each case, every step was trained, the events of busy
// traffic hold what its name says, and the journal leads to the same state.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "bench/report/program.h"
#include "scheduler/decide/decide.h"
#include "scheduler/simulator/world.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/invariants.h"
#include "scheduler/store/journal.h"
#include "tests/scheduler/decide/touches.h"

namespace tailrace {
namespace {

using namespace scheduler;

constexpr int64_t kGroup = 8;

enum class Traffic { kQuiet, kBusy };

struct Options {
  std::vector<int64_t> workers = {64, 1000, 3000, 3000};
  std::vector<int64_t> members = {6400, 32000, 100000, 1000000};
  std::vector<int64_t> snapshots = {10000, 100000};
  std::string folder = std::filesystem::temp_directory_path();
  int64_t events = 40000;
  int runs = 5;
};

// A step ahead, so that sampling goes on while a step is trained.
Config config_for(int64_t members, Traffic traffic) {
  Config config;
  config.mode.ahead = {1, 1};
  config.mode.max_staleness = 1;
  config.group_size = kGroup;
  config.steps = 1'000'000;
  config.datasets = {
      DatasetConfig{.prompts_per_step = std::max<int64_t>(1, members / (2 * kGroup))}};
  config.save.interval_steps = 1;
  if (traffic == Traffic::kBusy)
    config.eval = {.prompts = std::max<int64_t>(1, members / 100), .interval_steps = 2};
  return config;
}

class BenchEpisodes final : public simulator::EpisodeSource {
 public:
  simulator::Episode draw(Lane, const MemberId& member, int32_t) const override {
    simulator::Episode episode;
    episode.turns = {{.tokens = 100 + (member.prompt * 7919 + member.member * 31) % 1000}};
    episode.reward = member.member;
    return episode;
  }
};

simulator::Cluster cluster_for(int64_t workers, int64_t members, Traffic traffic) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = workers,
                    .slots = std::max<int64_t>(1, members / (2 * workers)),
                    .hardware = {.decode = {.step = 0.01}}}};
  // About a quarter of the time in which the samples of a step are decoded.
  cluster.trainer = {.update = 2};
  cluster.wire = {.delay = 0.001, .spread = 0.05};
  // Some worker dies every two seconds, half of them without a goodbye, and two links break a
  // second, half of which the scheduler takes for silence: a step takes some ten seconds.
  if (traffic == Traffic::kBusy) {
    cluster.faults.rollout_mean = 2 * static_cast<double>(workers);
    cluster.faults.goodbye = 0.5;
    cluster.faults.cut_mean = 0.5 * static_cast<double>(workers);
    cluster.faults.silent = 0.5;
  }
  return cluster;
}

using Events = std::vector<std::pair<Event, Time>>;

// The events that make traffic busy.
struct Troubles {
  int64_t losses = 0;       // a worker said goodbye, or its next process came
  int64_t reconnects = 0;   // a new session of the same process
  int64_t evaluations = 0;  // held-out members that ended

  // `state`: in front of the event.
  void count(const State& state, const Event& event) {
    if (const auto* down = std::get_if<WorkerDown>(&event)) losses += down->silent ? 0 : 1;
    if (const auto* up = std::get_if<WorkerUp>(&event)) {
      const auto known = state.workers.find(up->worker);
      if (known == state.workers.end()) return;  // its first process, or one that was lost before
      ++(known->second.incarnation == up->incarnation ? reconnects : losses);
    }
    if (const auto* result = std::get_if<AttemptResult>(&event))
      evaluations += result->lane == Lane::kEval ? 1 : 0;
  }

  // The name of a case says so much of it; each kind must be there.
  std::string name(bool loses) const {
    const auto claim = [](std::string_view kind, int64_t count) {
      require(count > 0, "the recorded events hold no {}; give more --events", kind);
    };
    claim("reconnects", reconnects);
    claim("evaluations", evaluations);
    if (!loses) return "reconnects and evaluations";
    claim("losses", losses);
    return "losses, reconnects and evaluations";
  }
};

// A simulated run.
class Run {
 public:
  Run(int64_t workers, int64_t members, Traffic traffic)
      : world_(config_for(members, traffic), cluster_for(workers, members, traffic), episodes_, 1) {
    world_.before = [this](const State& state, const Event& event, Time at) {
      at_ = at;
      if (kept_ != nullptr) {
        kept_->emplace_back(event, at);
        troubles_.count(state, event);
      }
      watch_.lap();
    };
    world_.observe = [this](const Event& event, const Actions& actions, const State& state) {
      require(state.halted.empty(), "the run halted: {}", state.halted);
      ++decided_;
      if (journal_ == nullptr) return;
      journal_->append(event, at_, actions);
      require(journal_->commit(false).ok(), "the journal cannot be written");
      longest_ = std::max(longest_, watch_.lap());
    };
  }

  // So many events, or a few more.
  void run(int64_t count) {
    const int64_t last = decided_ + count;
    while (decided_ < last) go_on();
  }

  // The same, and what they were.
  Events record(int64_t count) {
    Events events;
    kept_ = &events;
    run(count);
    kept_ = nullptr;
    return events;
  }

  // Events until `done`; returns the seconds on the wall that the longest one took, its entry in
  // the journal included.
  template <class Done>
  double run_with(Journal& journal, const Done& done) {
    journal_ = &journal;
    longest_ = 0;
    while (!done()) go_on();
    journal_ = nullptr;
    return longest_;
  }

  int64_t decided() const { return decided_; }
  const Troubles& troubles() const { return troubles_; }  // of what was recorded
  const State& state() const { return world_.state(); }

 private:
  void go_on() {
    require(world_.run(world_.now() + 0.005) == simulator::World::Stop::kTime, "nothing runs");
  }

  BenchEpisodes episodes_;
  simulator::World world_;
  Stopwatch watch_;
  Time at_{};
  double longest_ = 0;
  int64_t decided_ = 0;
  Events* kept_ = nullptr;
  Troubles troubles_;
  Journal* journal_ = nullptr;
};

// The events of a run, and its state before and after them.
struct Recorded {
  std::string before, after;
  std::vector<Events> rounds;
  Troubles troubles = {};
};

Recorded record(int64_t workers, int64_t members, Traffic traffic, const Options& options) {
  Run run(workers, members, traffic);
  run.run(options.events);  // until it is not the first step alone
  Recorded recorded{.before = to_bytes(run.state()), .after = {}, .rounds = {}};
  for (int round = 0; round < options.runs; ++round)
    recorded.rounds.push_back(run.record(options.events));
  const auto violation = find_violation(run.state());
  require(!violation, "{}", violation.value_or(""));
  recorded.after = to_bytes(run.state());
  recorded.troubles = run.troubles();
  return recorded;
}

// Seconds of CPU time that one of these events takes by itself, with the question when to tick
// next.
double time_of(const Events& events, State& state) {
  const Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
  for (const auto& [event, at] : events) {
    (void)decide(state, event, at);
    const auto next = next_deadline(state);
    require(!next || *next > at, "a deadline has passed");
  }
  return watch.seconds() / static_cast<double>(events.size());
}

void measure_events(int64_t workers, int64_t members, Traffic traffic, const Options& options,
                    Report& report) {
  const Recorded recorded = record(workers, members, traffic, options);
  std::optional<State> state = from_bytes<State>(recorded.before);
  require(state.has_value(), "the state does not read back");
  std::vector<double> rates, micros;
  for (const Events& events : recorded.rounds) {
    const double seconds = time_of(events, *state);
    rates.push_back(1 / seconds);
    micros.push_back(1e6 * seconds);
  }
  require(to_bytes(*state) == recorded.after, "the same events lead to another state");
  std::string name = fmt::format("{} workers, {} members", workers, members);
  if (traffic == Traffic::kBusy) {
    // Some worker dies every two seconds of the world. In the largest cases all events are over
    // by then.
    const Time span = recorded.rounds.back().back().second - recorded.rounds.front().front().second;
    const bool loses = span >= std::chrono::seconds(10);
    name += ", with " + recorded.troubles.name(loses);
  }
  report.add(name, "decide", "events/s", rates);
  report.add(name, "an event", "us", micros);
}

void measure_snapshots(const Options& options, int64_t members, Report& report) {
  namespace fs = std::filesystem;
  Run run(std::max<int64_t>(1, members / 32), members, Traffic::kQuiet);
  run.run(options.events);
  const fs::path folder =
      fs::path(options.folder) / fmt::format("tailrace-bench-scheduler-{}", ::getpid());
  fs::remove_all(folder);
  {
    auto opened = Journal::open(folder, run.state(), {.segment_bytes = 0});
    require(opened.ok(), "{}", opened ? "" : opened.failure().message);
    Journal& journal = opened.value();
    const auto well = [](const Result<void>& done) {
      require(done.ok(), "{}", done ? "" : done.failure().message);
    };
    std::vector<double> in_place, cut, otherwise, meanwhile, cut_ratio, longest_ratio;
    for (int round = -1; round < options.runs; ++round) {
      // Before each of them, so that there is something to sync.
      int64_t last = run.decided() + options.events;
      const auto done = [&] { return run.decided() >= last; };
      run.run_with(journal, done);
      Stopwatch watch;
      well(journal.rotate(run.state()));
      const double paused = watch.seconds();
      last = run.decided() + options.events;
      const double usual = run.run_with(journal, done);
      watch.lap();
      well(journal.cut(run.state()));
      journal.bodies_are_on_disk();
      const double copied = watch.seconds();
      const double longest = run.run_with(journal, [&] { return journal.is_due(); });
      well(journal.look());
      if (round < 0) continue;
      in_place.push_back(1e3 * paused);
      cut.push_back(1e3 * copied);
      otherwise.push_back(1e3 * usual);
      meanwhile.push_back(1e3 * longest);
      cut_ratio.push_back(copied / paused);
      longest_ratio.push_back(std::max(copied, longest) / paused);
    }
    const auto restored = restore(folder);
    require(restored.ok() && restored.value().state &&
                to_bytes(*restored.value().state) == to_bytes(run.state()),
            "the journal leads to another state");
    const std::string name = fmt::format("a snapshot, {} members", members);
    report.add(name, "pause in place", "ms", in_place);
    report.add(name, "pause of a cut", "ms", cut);
    report.add(name, "longest event meanwhile", "ms", meanwhile);
    report.add(name, "longest event otherwise", "ms", otherwise);
    report.add(name, "cut to in place", "x", cut_ratio);
    report.add(name, "longest to in place", "x", longest_ratio);
  }
  fs::remove_all(folder);
}

void measure_touches(const Options& options, Report& report) {
  for (const TouchCase& touch : touch_cases()) {
    for (const int64_t size : {touch.small, touch.large}) {
      std::vector<double> micros;
      for (int round = -1; round < options.runs; ++round) {
        Touches touches = touch.make(size);
        const Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
        for (const Event& event : touches.events)
          (void)decide(touches.state, event, touches.state.now);
        const double seconds = watch.seconds();
        const auto violation = find_violation(touches.state);
        require(!violation, "{}", violation.value_or(""));
        if (round >= 0) micros.push_back(1e6 * seconds / static_cast<double>(touches.touched()));
      }
      report.add(fmt::format("{}, {}", touch.name, size), "an event", "us", micros);
    }
  }
}

void measure(const Options& options, const Program& program) {
  require(options.workers.size() == options.members.size(), "--workers has {} values, --members {}",
          options.workers.size(), options.members.size());
  Settings settings;
  settings.emplace_back("events", options.events);
  settings.emplace_back("group_size", kGroup);
  Report report = program.report(settings);
  for (size_t i = 0; i < options.workers.size(); ++i) {
    for (const Traffic traffic : {Traffic::kQuiet, Traffic::kBusy})
      measure_events(options.workers[i], options.members[i], traffic, options, report);
  }
  measure_touches(options, report);
  for (const int64_t members : options.snapshots) measure_snapshots(options, members, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("scheduler", TAILRACE_MEASURES, "scheduler --workers 3000 --members 100000");
  program.fix_threads(1);
  program.flags().option("--workers", options.workers,
                         {.help = "rollout workers of each case", .min = 1, .max = 100000});
  program.flags().option("--members", options.members,
                         {.help = "members in flight of each case", .min = 8, .max = 100'000'000});
  program.flags().option(
      "--snapshots", options.snapshots,
      {.help = "members in flight whose snapshots are written", .min = 8, .max = 100'000'000});
  program.flags().option("--folder", options.folder,
                         {.help = "a folder on the disk that they are written to"});
  program.flags().option("--events", options.events,
                         {.help = "events of a measurement", .min = 1, .max = 100'000'000});
  program.flags().option("--runs", options.runs,
                         {.help = "measurements of a case", .min = 1, .max = 1000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
