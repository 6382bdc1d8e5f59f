// The lines between us and a program that plays environments (docs/environments.md): what is asked,
// and what an answer says.
//
// Thread: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/result.h"
#include "sandbox/environment.h"
#include "sandbox/environment_source.h"

namespace tailrace::sandbox {

// `settings`: those that are numbers, true or false come as such.
std::string info_line(const EnvironmentSettings& settings);
std::string call_line(const EnvironmentCall& call);
std::string close_line();
std::string sample_line(uint64_t random);
std::string demonstrate_line(uint64_t random);

// The content of an answer: a value; a Failure, where the program says that it could not; or that
// it does not know the call. `fault`: none of these, and why; nothing else holds then.
template <class T>
struct Answered {
  std::optional<T> value = {};
  std::optional<Failure> failure = {};
  bool is_unsupported = false;
  std::optional<std::string> fault = {};
};

Answered<EnvironmentInfo> read_info(const std::string& answer);
// For reset: its observation alone. An answer that ends an episode and names no verifier gets
// `info.verifier`.
Answered<StepResult> read_step(EnvironmentCall::Kind kind, const std::string& answer,
                               const EnvironmentInfo& info);
Answered<std::string> read_action(const std::string& answer);

// The result of an episode that the player cuts, where its program does not do so itself.
StepResult cut_by_player(const EnvironmentInfo& info);

}  // namespace tailrace::sandbox
