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
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
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

// Widest first, and never changed afterwards.
TEST_F(IsaTest, IsFixedForTheLifeOfTheProcess) {
  const Isa first = isa();
  for (const Isa wider : {Isa::kAvx2, Isa::kAvx512})
    EXPECT_TRUE(wider <= first || !is_available(wider));
  ::setenv("TAILRACE_ISA", "portable", 1);
  EXPECT_EQ(isa(), first);
}

}  // namespace
}  // namespace tailrace
