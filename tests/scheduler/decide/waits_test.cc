// Who waits for whom since when, in words.
#include "scheduler/state/waits.h"

#include "tests/scheduler/decide/harness.h"

namespace tailrace::scheduler {
namespace {

TEST(Waits, NameWhoWaitsForWhomAndSinceWhen) {
  Harness h(small_config(1, 2));
  const auto waits_after = [&](int64_t more) {
    return describe_waits(h.state, h.now + seconds(more));
  };
  EXPECT_EQ(waits_after(0), "the trainer has not published version 0 yet");
  h.tell(WorkerUp{.worker = "w0", .session = 4, .slots = 2});
  const auto installs = only<Stage>(h.tell(published(0)));
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(waits_after(7),
            "version 0; 0 of 1 groups ready; 2 samples wait for a rollout worker; w0 stages "
            "version 0 for 7 s");
  const auto changes = only<Switch>(h.tell(Staged{"w0", 0, 0, installs[0].digest}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(waits_after(2),
            "version 0; 0 of 1 groups ready; 2 samples wait for a rollout worker; w0 switches to "
            "version 0 for 2 s");
  const Actions grants = h.tell_switched(changes[0]);
  const std::string running = "version 0; 0 of 1 groups ready; 2 samples run at w0 (2)";
  EXPECT_EQ(waits_after(0), running);
  EXPECT_EQ(waits_after(31), running + ", the oldest for 31 s");
  h.answer_all(grants);
  EXPECT_EQ(waits_after(0),
            "version 0; 1 of 1 groups ready; the trainer has not asked for step 1 yet");
  h.tell(wants(1));
  EXPECT_EQ(waits_after(46),
            "version 0; 0 of 1 groups ready; the trainer works on step 1 for 46 s");
  h.tell(WorkerDown{.worker = "w0", .session = 4, .silent = true});
  EXPECT_EQ(waits_after(3),
            "version 0; 0 of 1 groups ready; the trainer works on step 1 for 3 s; w0 has been away "
            "for 3 s");
}

// Who loads a model, or hangs in it, is here and says nothing.
TEST(Waits, NameATrainerThatHasNotSaidWhatItHolds) {
  Harness h(small_config(1, 2), /*with_trainer=*/false);
  const auto waits = [&] { return describe_waits(h.state, h.now); };
  EXPECT_EQ(waits(), "the trainer has not published version 0 yet");
  const std::string silent = "; t has come and has not said yet what it holds";
  h.tell(WorkerUp{.worker = "t", .role = Role::kTrainer, .incarnation = 1});
  EXPECT_EQ(waits(), "the trainer has not published version 0 yet" + silent);
  h.tell(rolled_back(-1));
  EXPECT_EQ(waits(), "the trainer has not published version 0 yet");
  h.tell(published(0));
  EXPECT_EQ(waits().find(silent), std::string::npos) << waits();
  // Another process of its name.
  h.tell(WorkerUp{.worker = "t", .session = 1, .role = Role::kTrainer, .incarnation = 2});
  EXPECT_NE(waits().find(silent), std::string::npos) << waits();
  h.tell(rolled_back(0));
  EXPECT_EQ(waits().find(silent), std::string::npos) << waits();
}

}  // namespace
}  // namespace tailrace::scheduler
