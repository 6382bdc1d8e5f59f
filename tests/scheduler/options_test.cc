#include "scheduler/options.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace::scheduler {
namespace {

std::string refusal(const SchedulerOptions& options, const std::vector<int64_t>& domains) {
  try {
    (void)make_config(options, {}, domains);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(SchedulerOptions, DealPromptsToDomainsEvenly) {
  SchedulerOptions options;
  options.prompts_per_step = 8;
  options.steps = 3;
  const Config config = make_config(options, {}, {100, 0, 50});
  ASSERT_EQ(config.domains.size(), 3u);
  EXPECT_EQ(config.domains[0].prompts_per_step, 3);
  EXPECT_EQ(config.domains[1].prompts_per_step, 3);
  EXPECT_EQ(config.domains[2].prompts_per_step, 2);
  EXPECT_EQ(config.prompts_per_step(), 8);
  EXPECT_EQ(config.domains[1].prompts_per_epoch, 0);
  EXPECT_EQ(config.lease, std::chrono::seconds(600));
}

TEST(SchedulerOptions, RefuseARunWithoutEnd) {
  SchedulerOptions options;
  EXPECT_NE(refusal(options, {100}).find("never end"), std::string::npos);
  options.epochs = 1;
  EXPECT_EQ(refusal(options, {100}), "");
  EXPECT_NE(refusal(options, {0}).find("never end"), std::string::npos);  // a stream has no epochs
}

TEST(SchedulerOptions, RefuseAFilterThatKeepsNothing) {
  SchedulerOptions options;
  options.steps = 1;
  options.group_size = 1;
  options.replace_zero_signal = true;
  EXPECT_NE(refusal(options, {0}).find("replace_zero_signal"), std::string::npos);
}

}  // namespace
}  // namespace tailrace::scheduler
