// Law 7.1 among others that are well: whatever one worker does, and however often the links of the
// others break for a moment, the run comes to its end. Default limits; random moments.
#include <tuple>

#include "core/base/random.h"
#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

// Where the two are: all in one pool; each in one that no dataset names; the good one in one that a
// dataset names, beside another dataset that goes anywhere.
enum class Pools { kOne, kApart, kBound };

enum class Bad { kHangs, kFailsEpisodes, kDiesWithWork, kFailsInstalls, kDiesInInstalls, kSaysSo };

class Pair {
 public:
  Pair(uint64_t seed, Bad bad, Pools pools)
      : rng_(seed), bad_(bad), pools_(pools), h_(config(pools)) {
    perform(h_.tell(published(0)));
    for (const char* id : {"bad", "good"}) connect(id, ++h_.incarnations);
  }

  // Why it halted, or that it does not end; empty: it ended well.
  std::string run() {
    for (int i = 0; i < 20000 && !h_.state.ended && h_.state.halted.empty(); ++i) step();
    if (!h_.state.halted.empty()) return h_.state.halted;
    return h_.state.ended ? "" : "the run does not end";
  }

 private:
  static Config config(Pools pools) {
    Config config = small_config(4, 4);
    if (pools == Pools::kBound)
      config.datasets = {{.prompts_per_step = 2}, {.prompts_per_step = 2, .pool = "good"}};
    config.steps = 12;
    config.save.interval_steps = 4;
    config.deadlines.lease = seconds(20);
    return config;
  }

  void connect(const WorkerId& id, uint64_t incarnation) {
    sessions_[id] = ++session_;
    perform(h_.tell(WorkerUp{.worker = id,
                             .session = session_,
                             .incarnation = incarnation,
                             .slots = 4,
                             .site = {.pool = pools_ == Pools::kOne ? "" : id}}));
  }

  void perform(const Actions& actions) {
    for (const Action& action : actions) {
      if (const auto* install = std::get_if<Stage>(&action)) installs_.push_back(*install);
      if (const auto* batch = std::get_if<HandOver>(&action)) step_ = batch->step;
      if (const auto* save = std::get_if<Save>(&action)) save_ = save->version;
    }
  }

  // Without a goodbye; its next process says so.
  void die(const WorkerId& id) { connect(id, ++h_.incarnations); }

  void step() {
    h_.now += std::chrono::milliseconds(rng_.below(500));
    if (const auto deadline = next_deadline(h_.state); deadline && *deadline <= h_.now)
      perform(h_.tell(Tick{}));
    // A link breaks; the same process is back in a moment, or another one after a while.
    if (away_ && h_.now >= back_) {
      away_ = false;
      const auto worker = h_.state.workers.find("good");
      connect("good",
              worker == h_.state.workers.end() ? ++h_.incarnations : worker->second.incarnation);
    } else if (!away_ && rng_.chance(0.05)) {
      away_ = true;
      const bool silent = rng_.chance(0.8);
      back_ = h_.now + std::chrono::milliseconds(rng_.below(silent ? 5000 : 30000));
      perform(h_.tell(WorkerDown{"good", sessions_["good"], silent}));
    }
    if (!installs_.empty()) {
      const Stage install = installs_.back();
      installs_.pop_back();
      if (install.worker == "bad" && bad_ == Bad::kDiesInInstalls) {
        die("bad");
      } else if (install.worker == "bad" && bad_ == Bad::kFailsInstalls) {
        perform(h_.tell(InstallFailed{"bad", 0, install.version, install.digest, "no memory"}));
      } else if (install.worker == "bad" || !away_) {
        perform(h_.tell_installed(install));
      }
    }
    work();
    if (step_ > 0) {
      perform(h_.tell(published(std::exchange(step_, 0))));
    } else if (save_ > 0) {
      perform(h_.tell(durable(std::exchange(save_, 0))));
    } else {
      perform(h_.tell(wants(h_.policy().published + 1)));
    }
  }

  void work() {
    for (const auto& [work, lease] : h_.state.leases.in_order()) {
      if (!h_.state.leases.contains(work) || rng_.chance(0.5)) continue;
      const Grant grant = Harness::grant_of(work, lease);
      if (lease.worker != "bad") {
        if (h_.state.workers.at(lease.worker).connected)
          perform(h_.tell(h_.result(grant, work.member.member)));
        continue;
      }
      if (bad_ == Bad::kFailsEpisodes) perform(h_.tell(h_.failure(grant, Outcome::kEnvFailed)));
      if (bad_ == Bad::kSaysSo) perform(h_.tell(WorkerFailed{"bad", "no disk"}));
      if (bad_ == Bad::kDiesWithWork) die("bad");
    }
  }

  Rng rng_;
  Bad bad_;
  Pools pools_;
  Harness h_;
  uint64_t session_ = 0;
  std::map<WorkerId, uint64_t> sessions_;
  std::vector<Stage> installs_;
  int64_t step_ = 0, save_ = 0;
  bool away_ = false;  // the good one
  Time back_{};
};

class OneBadWorker : public testing::TestWithParam<std::tuple<Bad, Pools>> {};

TEST_P(OneBadWorker, EndsNothingWhileOthersAreWell) {
  const auto [bad, pools] = GetParam();
  for (uint64_t seed = 1; seed <= 40; ++seed)
    EXPECT_EQ(Pair(seed, bad, pools).run(), "") << "seed " << seed;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OneBadWorker,
    testing::Combine(testing::Values(Bad::kHangs, Bad::kFailsEpisodes, Bad::kDiesWithWork,
                                     Bad::kFailsInstalls, Bad::kDiesInInstalls, Bad::kSaysSo),
                     testing::Values(Pools::kOne, Pools::kApart, Pools::kBound)));

// A trainer that dies at the same batch each time, after a replay that goes well, is given up.
TEST(Health, ATrainerThatDiesAfterEachReplayHaltsTheRun) {
  Config config = small_config(1, 2);
  config.save.interval_steps = 100;
  Harness h(config);
  h.add_rollout("w0", 8);
  for (const Stage& install : only<Stage>(h.tell(published(0)))) h.tell_installed(install);
  h.tell(durable(0));
  for (int64_t step = 1; step <= 3; ++step) {
    h.answer_running();
    h.tell(wants(step));
    if (step == 3) break;  // the third batch is its death
    for (const Stage& install : only<Stage>(h.tell(published(step)))) h.tell_installed(install);
  }
  int deaths = 0;
  for (; deaths < 200 && h.state.halted.empty(); ++deaths) {
    h.tell(WorkerDown{"t"});
    h.now += seconds(70);
    h.tell(Tick{});
    h.add_trainer(0);
    for (int64_t step = 1; step <= 3; ++step) {
      h.tell(wants(step));
      if (step < 3) h.tell(published(step));
    }
  }
  EXPECT_LT(deaths, 20);
  EXPECT_NE(h.state.halted.find("no trainer worker is fit"), std::string::npos) << h.state.halted;
}

}  // namespace
}  // namespace tailrace::scheduler
