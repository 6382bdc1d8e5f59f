#include "core/base/memory_need.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(MemoryItems, AreSummedWithAndWithoutWhatIsOnlyABound) {
  std::vector<MemoryItem> items = {{"a", 5}, {"b", 7, /*certain=*/false}};
  EXPECT_EQ(total_bytes(items), 12);
  EXPECT_EQ(certain_bytes(items), 5);
  items.push_back({"c", std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(total_bytes(items), std::numeric_limits<int64_t>::max()) << "a sum that does not fit";
}

}  // namespace
}  // namespace tailrace
