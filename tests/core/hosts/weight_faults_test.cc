// Kills and other faults of weights: more than three thousand, and three times as many in the long
// test. Builds with a sanitizer leave the long tests out and play as many in this one.
//
// TAILRACE_SEED=N repeats one world.
#include <cstdlib>

#include "tests/core/hosts/weight_world.h"

namespace tailrace {
namespace {

constexpr int64_t kKillsOfAWorld = 167;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kWorlds = 60;
#else
constexpr uint64_t kWorlds = 20;
#endif

// With TAILRACE_SEED that world alone.
void play(uint64_t first_world, uint64_t worlds) {
  const char* chosen = std::getenv("TAILRACE_SEED");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : first_world;
  const uint64_t last = chosen != nullptr ? first : first_world + worlds - 1;
  std::map<std::string, int64_t> totals;
  for (uint64_t seed = first; seed <= last; ++seed) {
    testing::internal::CaptureStderr();  // warnings of every fault
    WeightWorld world(seed);
    const bool ended = world.run();
    const std::string warnings = testing::internal::GetCapturedStderr();
    for (const auto& [what, times] : world.seen()) totals[what] += times;
    if (ended) continue;
    FAIL() << warnings << world.tail() << "TAILRACE_SEED=" << seed << ": " << world.failure();
  }
  int64_t kills = 0;
  for (const auto& [what, times] : totals) {
    if (what.starts_with("kill ")) kills += times;
    if (std::getenv("TAILRACE_VERBOSE") != nullptr) fmt::print("{}: {}\n", what, times);
  }
  if (chosen != nullptr) return;
  EXPECT_GE(kills, kKillsOfAWorld * static_cast<int64_t>(worlds));
  // A world that no longer provokes these proves nothing about them.
  for (const char* what :
       {"kill relay", "kill receiver while it stages", "kill receiver behind staging",
        "kill receiver while it switches", "kill trainer while it publishes",
        "kill trainer while it tidies", "kill scheduler", "full disk: relay",
        "full disk: receiver while it stages", "full disk: trainer while it publishes",
        "full disk: trainer while it tidies", "flipped .delta", "flipped .safetensors",
        "short .delta", "short .safetensors", "moments of proof", "versions proved"})
    EXPECT_GE(totals[what], static_cast<int64_t>(worlds / 2)) << what;
}

TEST(WeightFaults, NobodySamplesByAnythingUnprovedAndWhatSamplesNameIsThere) { play(1, kWorlds); }
TEST(WeightFaults, LongNobodySamplesByAnythingUnprovedAndWhatSamplesNameIsThere) {
  if (std::getenv("TAILRACE_SEED") != nullptr) GTEST_SKIP() << "the other test plays it";
  play(21, 60);
}

}  // namespace
}  // namespace tailrace
