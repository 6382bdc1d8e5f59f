#include "core/run/status_page.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tailrace {
namespace {

TEST(StatusPage, AProcessSeesWhatAnotherOneSays) {
  auto page = StatusPage::create();
  ASSERT_TRUE(page) << page.failure().message;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto mine = StatusPage::adopt(::dup(page.value().descriptor()));
    if (!mine) ::_exit(1);
    const PulseScope scope(mine.value().pulse());
    for (int i = 0; i < 3; ++i) beat();
    mine.value().set_waits({"the trainer works on step 4", std::chrono::seconds(31)});
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(page.value().pulse().beats(), 3u);
  EXPECT_EQ(page.value().waits().line, "the trainer works on step 4");
  EXPECT_EQ(page.value().waits().quiet, std::chrono::seconds(31));
}

TEST(StatusPage, CutsALineThatIsTooLong) {
  auto page = StatusPage::create();
  ASSERT_TRUE(page) << page.failure().message;
  page.value().set_waits({std::string(100'000, 'x'), {}});
  EXPECT_EQ(page.value().waits().line, std::string(2048, 'x'));
  page.value().set_waits({"short", {}});
  EXPECT_EQ(page.value().waits().line, "short");
}

TEST(StatusPage, ALineIsReadWholeOrNotAtAll) {
  auto page = StatusPage::create();
  ASSERT_TRUE(page) << page.failure().message;
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    for (int i = 0; i < 20'000; ++i)
      page.value().set_waits({std::string(500, i % 2 == 0 ? 'a' : 'b'), {}});
    done = true;
  });
  while (!done) {
    const std::string line = page.value().waits().line;
    if (!line.empty()) {
      ASSERT_EQ(line, std::string(500, line[0]));
    }
  }
}

TEST(StatusPage, AnotherDescriptorIsRefused) {
  EXPECT_FALSE(StatusPage::adopt(-1));
  EXPECT_FALSE(StatusPage::adopt(1000));
  EXPECT_FALSE(StatusPage::adopt(STDIN_FILENO));
}

}  // namespace
}  // namespace tailrace
