// The processes of a run have as many threads that compute as its plan says: counted by their names
// in /proc.
#include <map>

#include "core/base/machine.h"
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

class LaunchThreads : public LaunchTest, public testing::WithParamInterface<const char*> {
 protected:
  // The one that plays the role computes too.
  static int64_t compute_threads(pid_t pid) {
    int64_t count = 1;
    std::error_code ended;
    for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), ended)) {
      const auto name = read_file(task.path() / "comm");
      count += name && name.value() == "tr-compute\n";
    }
    return count;
  }

  std::vector<std::string> overrides(std::vector<std::string> more) const {
    more.push_back(fmt::format("scheduler.mode={}", GetParam()));
    return more;
  }

  // The line of the plan, with the blanks of its heading.
  std::string planned(const std::string& said) const {
    const size_t at = said.find("\nthreads ");
    return at == std::string::npos ? "" : said.substr(at + 1, said.find('\n', at + 1) - at - 1);
  }

  // Waits until each of the three has so many, and has trained.
  void expect_threads(int64_t trainer, int64_t worker) {
    std::map<std::string, int64_t> seen;
    const auto is_there = [&] {
      for (const auto& [role, index] :
           std::map<std::string, int>{{"trainer", 0}, {"rollout", 0}, {"rollout ", 1}}) {
        const std::string name = role.substr(0, role.find(' '));
        const auto pids = workers(name, index);
        if (pids.empty()) return false;
        seen[role] = compute_threads(pids.front());
      }
      return has_step(2);
    };
    ASSERT_TRUE(wait_until(is_there)) << output();
    const std::map<std::string, int64_t> expected{
        {"trainer", trainer}, {"rollout", worker}, {"rollout ", worker}};
    EXPECT_EQ(seen, expected) << output();
  }
};

TEST_P(LaunchThreads, AreNoMoreThanTheCoresByDefault) {
  const int64_t cores = num_usable_cores();
  start_run("run", overrides({"train.threads=0"}));
  const bool in_turn = std::string_view(GetParam()) == "sync";
  const int64_t worker =
      std::clamp<int64_t>((in_turn ? cores : cores - std::max<int64_t>(1, cores / 2)) / 2, 1, 16);
  const int64_t trainer = in_turn ? cores : std::max<int64_t>(1, cores - 2 * worker);
  expect_threads(trainer, worker);
  const std::string line = planned(output());
  EXPECT_NE(line.find(fmt::format("trainer {} ", trainer)), std::string::npos) << line;
  EXPECT_NE(line.find(fmt::format("2 rollout workers x {}", worker)), std::string::npos) << line;
  if (cores > 2) {
    EXPECT_LE(in_turn ? std::max(trainer, 2 * worker) : trainer + 2 * worker, cores);
  }
  expect_done();
  if (!in_turn) return;
  // An evaluation has its turn too: no step is trained beside it.
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows) << rows.failure().message;
  int64_t trained = 0, evaluations = 0;
  for (const MetricsRow& row : rows.value()) {
    if (row.find("reward/mean") != nullptr) trained = row.step;
    if (row.find("eval/reward") == nullptr) continue;
    EXPECT_EQ(trained, row.step);
    ++evaluations;
  }
  EXPECT_EQ(evaluations, 1 + kSteps / 8);
}

TEST_P(LaunchThreads, AreThoseOfTheKeysWhereTheySaySo) {
  start_run("run", overrides({"rollout.threads=3", "train.threads=4"}));
  expect_threads(4, 3);
  EXPECT_NE(output().find("trainer 4 "), std::string::npos) << output();
  EXPECT_NE(output().find("2 rollout workers x 3"), std::string::npos) << output();
  EXPECT_EQ(output().find("threads compute at once") != std::string::npos,
            num_usable_cores() < (std::string_view(GetParam()) == "sync" ? 6 : 10))
      << output();
  expect_done();
}

INSTANTIATE_TEST_SUITE_P(Modes, LaunchThreads, testing::Values("sync", "async"));

}  // namespace
}  // namespace tailrace
