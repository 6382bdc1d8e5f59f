// Environments of a program in any language (docs/environments.md), as a run uses them.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/time.h"
#include "kernels/base/mutex.h"
#include "sandbox/environment_source.h"
#include "sandbox/process/command.h"
#include "sandbox/process/traceback.h"

namespace tailrace::sandbox {

struct CommandLimits {
  Time call{};                             // deadline of each call
  Time start = std::chrono::seconds(120);  // and of a start, which is over before a call
  int64_t starts_at_once = 16;             // of one program; others wait
};

class UsedProgram {
 public:
  // Nothing is started yet.
  UsedProgram(CommandStart start, const CommandLimits& limits)
      : start_(with_digests(std::move(start))), limits_(limits) {}

  const CommandStart& start() const { return start_; }

  // The program's facts about itself with these settings: asked once, in a process that ends with
  // the answer. Throws UserError: it cannot be started, refuses the settings, or gives no answer.
  EnvironmentInfo info(const EnvironmentSettings& settings);
  // Its processes start with the first episode, and end with the source and what was opened of it.
  // Throws UserError as info() does.
  static std::shared_ptr<const EnvironmentSource> source(std::shared_ptr<UsedProgram> program,
                                                         const EnvironmentSettings& settings);

  // The answers of the program, for a process that need not ask again.
  nlohmann::ordered_json facts() const;
  // Throws UserError for what facts() has not written.
  void know(const nlohmann::json& facts);

 private:
  struct Known {
    EnvironmentSettings settings;
    std::string answer;
    EnvironmentInfo info;
  };

  const CommandStart start_;
  const CommandLimits limits_;
  // Older than the processes of `env check`, which share it.
  const std::shared_ptr<ToldTracebacks> told_ = std::make_shared<ToldTracebacks>();
  mutable Mutex mutex_;
  std::vector<Known> known_ TR_GUARDED_BY(mutex_);
};

}  // namespace tailrace::sandbox
