#include "kernels/base/isa.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

class IsaTest : public testing::Test {
 protected:
  ~IsaTest() override { ::unsetenv("TAILRACE_ISA"); }
};

TEST_F(IsaTest, NamesWhatTheMachineHas) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    ::setenv("TAILRACE_ISA", std::string(name_of(isa)).c_str(), 1);
    EXPECT_EQ(isa_fault().has_value(), !is_available(isa)) << name_of(isa);
  }
  EXPECT_TRUE(is_available(Isa::kPortable));
}

TEST_F(IsaTest, RefusesANameThatNobodyHas) {
  ::setenv("TAILRACE_ISA", "sse9", 1);
  ASSERT_TRUE(isa_fault());
  EXPECT_NE(isa_fault()->find("TAILRACE_ISA is sse9; this machine has "), std::string::npos);
  EXPECT_NE(isa_fault()->find("portable"), std::string::npos);
  ::setenv("TAILRACE_ISA", "", 1);
  EXPECT_EQ(isa_fault(), std::nullopt);
}

// A number of the machine, the same whenever it is asked for.
TEST_F(IsaTest, MeasuresPairsOnce) {
  const double gain = measured_gain_of_pairs();
  if (is_available(Isa::kAvx512Bf16)) {
    EXPECT_GT(gain, 0.2);
    EXPECT_LT(gain, 5);
  } else {
    EXPECT_EQ(gain, 0);
  }
  EXPECT_EQ(measured_gain_of_pairs(), gain);
}

// Widest first, and never changed afterwards.
TEST_F(IsaTest, IsFixedForTheLifeOfTheProcess) {
  const Isa first = isa();
  for (const Isa wider : {Isa::kAvx2, Isa::kAvx512})
    EXPECT_TRUE(wider <= first || !is_available(wider));
  EXPECT_EQ(first == Isa::kAvx512Bf16, pairs_pay());
  ::setenv("TAILRACE_ISA", "portable", 1);
  EXPECT_EQ(isa(), first);
}

}  // namespace
}  // namespace tailrace
