// The first words between a worker of another host and the gate of a run. Their form is frozen: it
// is lines of text and no FlatBuffer, so that any two builds understand each other far enough to
// say that they do not fit.
//
//   tailrace-greeting 1          tailrace-greeting 1
//   build 0f3a...                welcome rollout-2
//   role rollout                 run quickstart
//   ...                          ...
//
// A line is "KEY VALUE"; keys that a reader does not know are skipped, and those that it misses are
// empty.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace tailrace::wire {

inline constexpr size_t kMaxGreetingBytes = 4096;

// How long a process that was away may come back under its name: so long the gate keeps the name,
// and so long the process waits for a gate that is silent.
inline constexpr std::chrono::milliseconds kMayBeAway{600'000};

// Whether these bytes begin as a greeting does: then they are no frame.
bool is_greeting(std::span<const std::byte> bytes);

struct Greeting {
  std::string build = {}, version = {};
  uint64_t incarnation = 0;  // of the process, as in its Hello
  Role role = Role::kRollout;
  std::string pool = {}, cluster = {}, host = {};
  std::string relay = {};  // "tcp://HOST:PORT" where it hands weights on; empty: it does not
};
struct GreetingAnswer {
  enum class Kind {
    kWelcome,  // under `name`
    kRefused,  // for good: `reason` is for a person
    kLater,    // not now: `reason`; ask again
  };
  Kind kind = Kind::kRefused;
  std::string name = {}, reason = {};
  std::string run = {}, cluster = {}, pool = {};  // of a welcome: what the worker is part of
};

std::vector<std::byte> encode(const Greeting& greeting);
std::vector<std::byte> encode(const GreetingAnswer& answer);
// Nothing: the bytes are no greeting that makes sense.
std::optional<Greeting> decode_greeting(std::span<const std::byte> bytes);
std::optional<GreetingAnswer> decode_greeting_answer(std::span<const std::byte> bytes);

}  // namespace tailrace::wire
