// Settings as a library declares them and a host reads them.
#include "tailrace/library.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tailrace/env.h"
#include "tailrace/reward.h"

namespace tailrace {
namespace {

class Nothing : public Reward {
 public:
  explicit Nothing(const Settings&) {}
  Score score(std::string_view, int64_t) override { return {}; }
};

TEST(Library, ANumberThatIsDeclaredComesBackToTheLastBit) {
  const tr_host host{};
  Library library(host);
  auto& declared = library.reward<Nothing>("nothing", "scores nothing");
  const std::vector<double> numbers = {1e-7, 0.1, 0.05, 1.0 / 3, 1e30, 0, -2.5, 5e-324};
  for (const double number : numbers) declared.number("n", "a number", number);

  const tr_setting* const* settings = library.finish("x", "1")->rewards[0]->settings;
  for (const double number : numbers)
    EXPECT_EQ(std::strtod((*settings++)->fallback, nullptr), number);
  EXPECT_EQ(*settings, nullptr);
  // People read it too.
  EXPECT_STREQ(declared.type()->settings[2]->fallback, "0.05");
}

}  // namespace
}  // namespace tailrace
