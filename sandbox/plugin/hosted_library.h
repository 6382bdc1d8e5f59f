// A library in processes of its own (host.h): nothing that it does there hangs or crashes this one.
//
// A session is a process that plays one environment or scores with one reward, fresh for each
// (session_loop.h).
//
// Thread: any. A session is used by one thread at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "core/base/time.h"
#include "sandbox/plugin/facts.h"
#include "sandbox/plugin/session_loop.h"

namespace tailrace::sandbox {

class HostedLibrary {
 public:
  static constexpr Time kPatience = std::chrono::seconds(30);

  // Its process starts now, and says what it has. `program`: this build's tailrace. Throws
  // UserError: what the library says at its start, or that it says nothing within `patience`.
  static std::shared_ptr<HostedLibrary> start(
      const std::filesystem::path& file, const std::filesystem::path& program = "/proc/self/exe",
      Time patience = kPatience);
  // Its process starts with the first session.
  static std::shared_ptr<HostedLibrary> known(const std::filesystem::path& file,
                                              LibraryFacts facts);

  const std::filesystem::path& file() const { return file_; }
  const LibraryFacts& facts() const { return facts_; }

  // A process of its own, which has made nothing yet. What keeps it from having one is the failure
  // of its first call.
  std::unique_ptr<HostedSession> open(
      HostedSession::Calls calls = HostedSession::Calls::kAwaited) const {
    return std::make_unique<HostedSession>(loop_, calls);
  }

 private:
  HostedLibrary(const std::filesystem::path& file, LibraryFacts facts,
                const std::filesystem::path& program, Time patience)
      : file_(file),
        loop_(std::make_shared<SessionLoop>(file, facts.digest, program, patience)),
        facts_(std::move(facts)) {}

  const std::filesystem::path file_;
  const std::shared_ptr<SessionLoop> loop_;
  LibraryFacts facts_;
};

}  // namespace tailrace::sandbox
