// What is told of calls that were refused.
#include "rollout/gateway/refusals.h"

#include <gtest/gtest.h>

namespace tailrace::gateway {
namespace {

ApiError wrong(const std::string& param, const std::string& message = "is wrong") {
  return {.status = 400, .message = message, .param = param};
}

TEST(Refusals, AreALineAKindAndOneMoreEachTimeThatItIsTenTimesAsOften) {
  CountedLines refusals;
  for (int i = 0; i < 1000; ++i)
    note_refusal(refusals, wrong("messages[" + std::to_string(i) + "].role"));
  note_refusal(refusals, {.status = 401, .message = "no such key"});
  const auto lines = refusals.take();
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(lines[0], "the gateway refused a call: 400 messages[0].role: is wrong");
  EXPECT_EQ(lines[3],
            "the gateway refused a call: 400 messages[999].role: is wrong (the like 1000 times so "
            "far)");
  EXPECT_EQ(lines[4], "the gateway refused a call: 401 no such key");
  EXPECT_TRUE(refusals.take_totals().empty()) << "all of them have been told of";
}

TEST(Refusals, AreBoundedWhateverAClientSends) {
  CountedLines refusals;
  for (int i = 0; i < 300; ++i) {
    std::string name = "field";
    for (int j = i; j > 0; j /= 26) name += static_cast<char>('a' + j % 26);
    note_refusal(refusals, wrong(name, std::string(100000, 'x') + "\nend"));
  }
  const auto lines = refusals.take();
  EXPECT_LT(lines.size(), 80);
  for (const std::string& line : lines) EXPECT_LT(line.size(), 500);
  EXPECT_EQ(told(wrong("a", "b\nc")), "400 a: b c");
  EXPECT_EQ(refusals.take_totals().size(), 1);
}

}  // namespace
}  // namespace tailrace::gateway
