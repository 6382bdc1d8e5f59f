#include "core/run/memory_need.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

std::string refusal(const MemoryFacts& machine) {
  try {
    require_memory({.process = "the trainer", .cure = "lower a.b", .bytes = 3 * kGib / 2}, machine);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RequireMemory, RefusesWhatIsNotFreeAndNamesProcessNeedAndKeys) {
  EXPECT_EQ(refusal({.total_bytes = 4 * kGib, .available_bytes = 3 * kGib / 2}), "");
  EXPECT_EQ(refusal({.total_bytes = 4 * kGib, .available_bytes = kGib}),
            "the trainer needs 1.5 GiB of memory and 1.0 GiB are free: lower a.b (--dry-run shows "
            "what each takes).");
  EXPECT_NE(refusal({.available_bytes = kGib, .cgroup_limit_bytes = 2 * kGib})
                .find("1.0 GiB are free of the 2.0 GiB of its cgroup: lower"),
            std::string::npos);
  EXPECT_EQ(refusal({}), "") << "the system does not say";
}

TEST(RequireMemory, WhoIsNotGivenWhatIsFreeHearsOfALimit) {
  try {
    refuse_without_memory({.process = "the trainer", .cure = "lower a.b", .bytes = kGib},
                          {.available_bytes = 2 * kGib});
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "the trainer needs 1.0 GiB of memory and did not get them, though 2.0 GiB are "
                 "free: is there a limit (ulimit -v)? Raise it, or lower a.b (--dry-run shows what "
                 "each takes).");
  }
}

TEST(CgroupMemory, IsReadInBothVersionsAndCountsNoCache) {
  TemporaryDirectory none;
  EXPECT_EQ(cgroup_memory(none.path()).limit_bytes, 0);
  TemporaryDirectory v2;
  v2.write("memory.max", "max\n");
  EXPECT_EQ(cgroup_memory(v2.path()).limit_bytes, 0);
  v2.write("memory.max", "1000\n");
  v2.write("memory.current", "900\n");
  v2.write("memory.stat", "anon 300\nfile 600\ninactive_file 350\nactive_file 240\nslab 7\n");
  EXPECT_EQ(cgroup_memory(v2.path()).limit_bytes, 1000);
  EXPECT_EQ(cgroup_memory(v2.path()).used_bytes, 310);
  TemporaryDirectory v1;
  std::filesystem::create_directory(v1.path() / "memory");
  v1.write("memory/memory.limit_in_bytes", "2000\n");
  v1.write("memory/memory.usage_in_bytes", "500\n");
  v1.write("memory/memory.stat", "cache 100\ninactive_file 60\nactive_file 40\n");
  EXPECT_EQ(cgroup_memory(v1.path()).limit_bytes, 2000);
  EXPECT_EQ(cgroup_memory(v1.path()).used_bytes, 400);
}

TEST(MemoryItems, AreSummedWithAndWithoutWhatIsOnlyABound) {
  std::vector<MemoryItem> items = {{"a", 5}, {"b", 7, /*certain=*/false}};
  EXPECT_EQ(total_bytes(items), 12);
  EXPECT_EQ(certain_bytes(items), 5);
  items.push_back({"c", std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(total_bytes(items), std::numeric_limits<int64_t>::max()) << "a sum that does not fit";
}

}  // namespace
}  // namespace tailrace
