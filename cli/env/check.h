// The checks of `tailrace env check`: whether an environment keeps the promises that a run relies
// on (sandbox/environment.h).
//
// Each check runs in a process of its own (apart.h): one that crashes or hangs has failed, and the
// others still run.
//
// Thread: the only one of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/time.h"
#include "reward/registry.h"
#include "sandbox/environment.h"

namespace tailrace {

struct EnvCheckPlan {
  // May throw UserError: settings that it refuses.
  std::function<std::unique_ptr<sandbox::Environment>()> make;
  std::vector<std::string> rows = {};  // of the dataset (JSON); empty: tasks come from seeds alone
  const VerifierRegistry* verifiers = nullptr;  // borrowed
  std::vector<std::string> rewards = {};        // names of `verifiers` that garbage is sent to
  uint64_t seed = 0;
  int64_t episodes = 200;  // of each check
  int64_t memory_episodes = 10000;
  // A check ends early, with the episodes that it has, once it has taken `patience`. It is killed
  // after `limit`, or where a single call takes `call`.
  Time patience = std::chrono::seconds(30), limit = std::chrono::minutes(5),
       call = std::chrono::seconds(30);
};

enum class CheckOutcome : uint8_t { kOk, kFailed, kSkipped };
constexpr auto enum_names(CheckOutcome) {
  return name_table<CheckOutcome>({{CheckOutcome::kOk, "ok"},
                                   {CheckOutcome::kFailed, "FAILED"},
                                   {CheckOutcome::kSkipped, "skipped"}});
}

struct EnvCheck {
  std::string name;
  CheckOutcome outcome = CheckOutcome::kOk;
  std::string seen;                             // for a person
  std::optional<double> seconds_per_step = {};  // of the check of the speed: p50
};

// Where no environment can be made, or its first reset() fails, the other checks are skipped.
// `show` gets each one as soon as it is known. Throws UserError: the environment refuses its
// settings, or needs a dataset that is not there.
std::vector<EnvCheck> check_env(const EnvCheckPlan& plan,
                                const std::function<void(const EnvCheck&)>& show = {});

inline bool is_good(const std::vector<EnvCheck>& checks) {
  for (const EnvCheck& check : checks)
    if (check.outcome == CheckOutcome::kFailed) return false;
  return true;
}

}  // namespace tailrace
