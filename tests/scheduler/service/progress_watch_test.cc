#include "scheduler/service/progress_watch.h"

#include <chrono>

#include <gtest/gtest.h>

namespace tailrace::scheduler {
namespace {

using namespace std::chrono_literals;

class ProgressWatchTest : public testing::Test {
 protected:
  ProgressWatchTest() {
    Worker& worker = state_.workers["w0"];
    worker.session = 7;
    worker.version = 0;
    worker.leased = 2;
    state_.workers["t"].role = Role::kTrainer;
  }

  // Looks every tenth of a second, as the service does or more often; the changes, in words.
  std::string pass(std::chrono::milliseconds time) {
    std::string changes;
    for (const Time end = now_ + time; now_ < end;) {
      now_ += 100ms;
      for (const Stalled& change : watch_.look(state_, now_)) {
        EXPECT_EQ(change.session, state_.workers.at(change.worker).session);
        state_.workers.at(change.worker).stalled = change.stalled;
        changes += change.worker + (change.stalled ? " stands. " : " moves. ");
      }
    }
    return changes;
  }

  State state_;
  Time now_{100s};
  std::map<WorkerId, uint64_t> progress_{{"w0", 1}};
  ProgressWatch watch_{2s, [this](const WorkerId& id, uint64_t) -> std::optional<uint64_t> {
                         const auto it = progress_.find(id);
                         if (it == progress_.end()) return std::nullopt;
                         return it->second;
                       }};
};

TEST_F(ProgressWatchTest, TellsOnceWhoStandsStillAndOnceThatItMovesAgain) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(pass(1500ms), "");
    ++progress_["w0"];
  }
  EXPECT_EQ(pass(5s), "w0 stands. ");
  EXPECT_EQ(pass(60s), "");
  // Its work is elsewhere by now.
  state_.workers["w0"].leased = 0;
  EXPECT_EQ(pass(5s), "");
  ++progress_["w0"];
  EXPECT_EQ(pass(1s), "w0 moves. ");
  EXPECT_EQ(pass(60s), "") << "it has nothing to do";
}

// The time of who has nothing to do, or is away, does not count.
TEST_F(ProgressWatchTest, CountsOnlyTimeInWhichOthersWaitForIt) {
  Worker& worker = state_.workers["w0"];
  worker.leased = 0;
  EXPECT_EQ(pass(60s), "");
  worker.leased = 1;
  EXPECT_EQ(pass(1500ms), "");
  worker.version = -1;
  EXPECT_EQ(pass(60s), "");
  worker.version = 0;
  EXPECT_EQ(pass(1500ms), "");
  worker.connected = false;
  EXPECT_EQ(pass(60s), "");
  worker.connected = true;
  worker.session = 8;
  EXPECT_EQ(pass(1500ms), "");
  EXPECT_EQ(pass(1500ms), "w0 stands. ");
}

TEST_F(ProgressWatchTest, AnInstallIsWorkToo) {
  Worker& worker = state_.workers["w0"];
  worker.leased = 0;
  worker.install.emplace().version = 1;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(pass(1500ms), "");
    ++progress_["w0"];  // a block of a tensor
  }
  EXPECT_EQ(pass(5s), "w0 stands. ");
}

TEST_F(ProgressWatchTest, WhoSaysNothingOfItIsNotJudged) {
  progress_.clear();
  EXPECT_EQ(pass(60s), "");
}

// What has come meanwhile waits to be read; that it was not is not the workers' fault.
TEST_F(ProgressWatchTest, AServiceThatWasAwayBlamesNobody) {
  EXPECT_EQ(pass(500ms), "");
  now_ += 60s;
  EXPECT_EQ(pass(400ms), "");
  ++progress_["w0"];
  EXPECT_EQ(pass(1s), "");
}

TEST_F(ProgressWatchTest, WithoutPatienceNobodyIsWatched) {
  watch_ = ProgressWatch(Time{}, [](const WorkerId&, uint64_t) { return 1; });
  EXPECT_EQ(pass(600s), "");
}

}  // namespace
}  // namespace tailrace::scheduler
