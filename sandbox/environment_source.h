// Where the environments of an episode come from: one kind, with its settings.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sandbox/agent_program.h"
#include "sandbox/environment.h"

namespace tailrace::sandbox {

// One call of an environment; a reset is answered with the first observation alone.
struct EnvironmentCall {
  enum class Kind : uint8_t { kReset, kStep, kCut };
  Kind kind = Kind::kReset;
  Task task = {};           // of kReset
  std::string action = {};  // of kStep
};

// An environment that plays elsewhere: whoever begins a call waits for nothing, and each call has a
// deadline of its own. Its destructor closes it, and does not wait for that either.
class RemoteEnvironment {
 public:
  // Once, from any thread, also before begin() returns.
  using Done = std::function<void(Result<StepResult>)>;

  virtual ~RemoteEnvironment() = default;
  virtual void begin(const EnvironmentCall& call, Done done) = 0;
};

class EnvironmentSource {
 public:
  virtual ~EnvironmentSource() = default;
  // Found once; asking runs nothing of the environment's.
  virtual const EnvironmentInfo& info() const = 0;
  // A fresh one. Its constructor may take long: not on a thread that others wait for. Throws
  // UserError.
  virtual std::unique_ptr<Environment> open() const = 0;
  // A fresh one that plays elsewhere; null: they play where they are opened. Runs nothing of the
  // environment's.
  virtual std::unique_ptr<RemoteEnvironment> open_remote() const { return nullptr; }
  // Instead of an environment that is asked: a program that plays by itself. There is nothing to
  // open then. Null: there is an environment.
  virtual std::shared_ptr<const AgentProgram> agent() const { return nullptr; }
};

// The first observation of a reset as a step's, so that every call has one kind of answer.
inline Result<StepResult> first_step(Result<Observation> first) {
  if (!first) return first.failure();
  StepResult result;
  result.observation = std::move(first).value();
  return result;
}

}  // namespace tailrace::sandbox
