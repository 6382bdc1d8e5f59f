#include "core/base/version.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// Without it a worker of another build could join a run. A linker gives it with --build-id, which
// the compilers of Debian ask for by themselves.
TEST(Version, TheBuildIsNamedByWhatItIsMadeOf) {
  const std::string id = build_id();
  EXPECT_GE(id.size(), 16u) << id;
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
  EXPECT_EQ(build_id(), id);
}

}  // namespace
}  // namespace tailrace
