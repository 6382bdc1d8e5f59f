// The scheduler's state machine by itself: events a second that decide() answers, each with the
// question when to tick next, as the service asks. Workers sample, a trainer trains, checkpoints
// are written and weights installed; half of the members in flight run, half wait for a slot.
//
// And what a snapshot costs the one who decides, with the journal on a real disk: how long it
// pauses for one that is written in place, and for a cut, whose snapshot is written beside it. Both
// are taken in turn, so that others on the machine slow both down. Seconds on the wall: a pause is
// one.
//
// Checked: the state is sound at the end of each case, every step was trained, and the journal
// leads to the same state.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "bench/report/program.h"
#include "core/base/random.h"
#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/invariants.h"
#include "scheduler/store/journal.h"

namespace tailrace {
namespace {

using namespace scheduler;

constexpr int64_t kGroup = 8;

struct Options {
  std::vector<int64_t> workers = {64, 1000, 3000, 3000};
  std::vector<int64_t> members = {6400, 32000, 100000, 1000000};
  std::vector<int64_t> snapshots = {10000, 100000};
  std::string folder = std::filesystem::temp_directory_path();
  int64_t events = 40000;
  int runs = 5;
};

// A step ahead, so that sampling goes on while a step is trained.
Config config_for(int64_t members) {
  Config config;
  config.mode.ahead = {1, 1};
  config.mode.max_staleness = 1;
  config.group_size = kGroup;
  config.steps = 1'000'000;
  config.domains = {DomainConfig{.prompts_per_step = std::max<int64_t>(1, members / (2 * kGroup))}};
  config.save.interval_steps = 1;
  return config;
}

class World {
 public:
  World(int64_t workers, int64_t members) : state_(config_for(members)) {
    const int64_t slots = std::max<int64_t>(1, members / (2 * workers));
    tell(WorkerUp{.worker = "trainer-0", .role = Role::kTrainer, .incarnation = 1});
    tell(RolledBack{"trainer-0", 0, -1, "", ""});
    for (int64_t i = 0; i < workers; ++i)
      tell(WorkerUp{.worker = fmt::format("rollout-{}", i), .slots = slots});
    publish(0);
  }

  // `count` events; returns the seconds of CPU time that one took, this made-up world included: a
  // clock read around each would cost more than the world does.
  double run(int64_t count) {
    const int64_t before = events_;
    const Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
    while (events_ - before < count) step();
    return watch.seconds() / static_cast<double>(events_ - before);
  }

  // Events until `done`; returns the seconds on the wall that the longest one took, its entry in
  // the journal included.
  template <class Done>
  double run_with(Journal& journal, const Done& done) {
    double longest = 0;
    journal_ = &journal;
    for (Stopwatch watch; !done(); longest = std::max(longest, watch.lap())) {
      watch.lap();
      step();
    }
    journal_ = nullptr;
    return longest;
  }

  const State& state() const { return state_; }

 private:
  void step() {
    if (!stages_.empty()) {
      const Stage stage = stages_.back();
      stages_.pop_back();
      return tell(Staged{stage.worker, stage.policy, stage.version, stage.digest});
    }
    if (!switches_.empty()) {
      const Switch change = switches_.back();
      switches_.pop_back();
      return tell(Installed{change.worker, change.policy, change.version, change.digest});
    }
    if (saving_) {
      saving_ = false;
      return tell(Durable{"trainer-0", 0, version_, version_});
    }
    if (training_ > 0 && (--training_ == 0 || grants_.empty())) {
      training_ = 0;
      return publish(version_ + 1);
    }
    require(!grants_.empty(), "nothing runs at version {}", version_);
    const auto index = static_cast<size_t>(rng_.below(std::ssize(grants_)));
    std::swap(grants_[index], grants_.back());
    const Grant grant = std::move(grants_.back());
    grants_.pop_back();
    const int64_t version = state_.workers.at(grant.worker).version;
    tell(AttemptResult{.worker = grant.worker,
                       .lease = grant.lease,
                       .lane = grant.lane,
                       .outcome = Outcome::kFinished,
                       .tokens = 100,
                       .min_version = std::min(version, grant.version),
                       .max_version = version,
                       .reward = static_cast<double>(grant.lease.member.member),
                       .needs_verifier = false,
                       .reason = ""});
  }

  void publish(int64_t version) {
    version_ = version;
    tell(Published{"trainer-0", 0, version, fmt::format("d{}", version), "m"});
    tell(TrainerWants{"trainer-0", 0, version + 1});
  }

  void tell(const Event& event) {
    now_ += std::chrono::microseconds(50);
    Actions actions = decide(state_, event, now_);
    const auto next = next_deadline(state_);
    if (journal_ != nullptr) {
      journal_->append(event, now_, actions);
      require(journal_->commit(false).ok(), "the journal cannot be written");
    }
    ++events_;
    require(!next || *next > now_, "a deadline has passed");
    for (Action& action : actions) {
      if (auto* grant = std::get_if<Grant>(&action)) grants_.push_back(std::move(*grant));
      if (auto* stage = std::get_if<Stage>(&action)) stages_.push_back(std::move(*stage));
      if (auto* change = std::get_if<Switch>(&action)) switches_.push_back(std::move(*change));
      if (std::holds_alternative<Save>(action)) saving_ = true;
      // A trainer takes as long as the workers take for a quarter of a step.
      if (std::holds_alternative<HandOver>(action))
        training_ = 1 + state_.config.prompts_per_step() * kGroup / 4;
      require(!std::holds_alternative<Halt>(action), "the run halted: {}", state_.halted);
    }
  }

  State state_;
  Time now_{std::chrono::seconds(1)};
  Rng rng_{1};
  std::vector<Grant> grants_;
  std::vector<Stage> stages_;
  std::vector<Switch> switches_;
  int64_t version_ = -1, training_ = 0, events_ = 0;
  bool saving_ = false;
  Journal* journal_ = nullptr;
};

void measure_snapshots(const Options& options, int64_t members, Report& report) {
  namespace fs = std::filesystem;
  World world(std::max<int64_t>(1, members / 32), members);
  world.run(options.events);
  const fs::path folder =
      fs::path(options.folder) / fmt::format("tailrace-bench-scheduler-{}", ::getpid());
  fs::remove_all(folder);
  {
    auto opened = Journal::open(folder, world.state(), {.segment_bytes = 0});
    require(opened.ok(), "{}", opened ? "" : opened.failure().message);
    Journal& journal = opened.value();
    const auto well = [](const Result<void>& done) {
      require(done.ok(), "{}", done ? "" : done.failure().message);
    };
    std::vector<double> in_place, cut, otherwise, meanwhile, cut_ratio, longest_ratio;
    for (int run = -1; run < options.runs; ++run) {
      // Before each of them, so that there is something to sync.
      int64_t left = options.events;
      world.run_with(journal, [&] { return left-- == 0; });
      Stopwatch watch;
      well(journal.rotate(world.state()));
      const double paused = watch.seconds();
      left = options.events;
      const double usual = world.run_with(journal, [&] { return left-- == 0; });
      watch.lap();
      well(journal.cut(world.state()));
      journal.bodies_are_on_disk();
      const double copied = watch.seconds();
      const double longest = world.run_with(journal, [&] { return journal.is_due(); });
      well(journal.look());
      if (run < 0) continue;
      in_place.push_back(1e3 * paused);
      cut.push_back(1e3 * copied);
      otherwise.push_back(1e3 * usual);
      meanwhile.push_back(1e3 * longest);
      cut_ratio.push_back(copied / paused);
      longest_ratio.push_back(std::max(copied, longest) / paused);
    }
    const auto restored = restore(folder);
    require(restored.ok() && restored.value().state &&
                to_bytes(*restored.value().state) == to_bytes(world.state()),
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

void measure(const Options& options, const Program& program) {
  require(options.workers.size() == options.members.size(), "--workers has {} values, --members {}",
          options.workers.size(), options.members.size());
  Settings settings;
  settings.emplace_back("events", options.events);
  settings.emplace_back("group_size", kGroup);
  Report report = program.report(settings);
  for (size_t i = 0; i < options.workers.size(); ++i) {
    World world(options.workers[i], options.members[i]);
    world.run(options.events);  // until it is not the first step alone
    std::vector<double> rates, micros;
    for (int run = 0; run < options.runs; ++run) {
      const double seconds = world.run(options.events);
      rates.push_back(1 / seconds);
      micros.push_back(1e6 * seconds);
    }
    const auto violation = find_violation(world.state());
    require(!violation, "{}", violation.value_or(""));
    const std::string name =
        fmt::format("{} workers, {} members", options.workers[i], options.members[i]);
    report.add(name, "decide", "events/s", rates);
    report.add(name, "an event", "us", micros);
  }
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
