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
  const auto installs = only<Install>(h.tell(published(0)));
  ASSERT_EQ(installs.size(), 1u);
  EXPECT_EQ(waits_after(7),
            "version 0; 0 of 1 groups ready; 2 samples wait for a rollout worker; w0 installs "
            "version 0 for 7 s");
  const Actions grants = h.tell_installed(installs[0]);
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

}  // namespace
}  // namespace tailrace::scheduler
