#include "reward/command/command_verifier.h"

#include <utility>

#include "kernels/base/mutex.h"
#include "reward/command/retold.h"

namespace tailrace {
namespace {

class CommandVerifier final : public Verifier {
 public:
  CommandVerifier(sandbox::CommandStart command, CommandPoolOptions options)
      : command_(std::move(command)), options_(std::move(options)) {}

  Result<Score> score(const std::string& evidence, Time budget) const override {
    const auto retold = RetoldEpisode::read(evidence);
    if (!retold) return retold.failure();
    const std::string& episode = retold.value().episode;
    return pool().ask(episode.substr(1, episode.size() - 2), budget);
  }

 private:
  // Many hold a verifier and score nothing.
  CommandPool& pool() const {
    MutexLock lock(mutex_);
    if (pool_ == nullptr) pool_ = std::make_unique<CommandPool>(command_, options_);
    return *pool_;
  }

  const sandbox::CommandStart command_;
  const CommandPoolOptions options_;
  mutable Mutex mutex_;
  mutable std::unique_ptr<CommandPool> pool_ TR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Verifier> make_command_verifier(sandbox::CommandStart command,
                                                CommandPoolOptions options) {
  return std::make_unique<CommandVerifier>(with_digests(std::move(command)), std::move(options));
}

}  // namespace tailrace
