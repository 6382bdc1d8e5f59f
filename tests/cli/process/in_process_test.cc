#include "cli/process/in_process.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cli/inputs/registries.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using End = SupervisorResult::End;

class InProcess : public testing::Test {
 protected:
  InProcess() {
    fs::create_directories(paths_.logs());
    fs::create_directories(paths_.roles());
    options_.log.level = LogLevel::kError;
    supervision_.tick = 1ms;
  }

  SupervisorResult run() {
    const ResolvedRun resolved = resolve(options_);
    const RoleContext context{paths_, resolved, "ipc:///nowhere", registries_};
    return run_in_process(
        context, supervision_, [](const std::string&) {}, [] {},
        [](const SupervisorResult&) { return 1; });
  }

  TemporaryDirectory folder_;
  const RunPaths paths_{folder_ / "run"};
  RunOptions options_;
  SupervisorOptions supervision_;
  const Registries registries_ = built_in_registries();
};

// All roles are played by somebody else, so that all fail at once, now and then before anybody
// looks.
TEST_F(InProcess, RolesThatFailAtOnceAreAFailure) {
  std::vector<std::unique_ptr<LockFile>> taken;
  for (const RoleName& name : roles_of(resolve(options_)))
    taken.push_back(std::make_unique<LockFile>(paths_.role(name_of(name.kind), name.index)));
  for (int i = 0; i < 200; ++i) {
    const SupervisorResult result = run();
    ASSERT_EQ(result.end, End::kUserError) << i << ": " << result.message;
    ASSERT_NE(result.message.find("is played already"), std::string::npos) << result.message;
  }
}

}  // namespace
}  // namespace tailrace
