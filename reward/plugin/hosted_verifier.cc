#include "reward/plugin/hosted_verifier.h"

#include <utility>
#include <vector>

#include "sandbox/plugin/protocol.h"

namespace tailrace {
namespace {

using sandbox::HostedSession;
using sandbox::Packer;
using sandbox::SessionRequest;
using sandbox::Unpacker;
using sandbox::UsedLibrary;

class HostedVerifier final : public Verifier {
 public:
  HostedVerifier(std::shared_ptr<UsedLibrary> library, const std::string& name,
                 const sandbox::EnvironmentSettings& settings)
      : library_(std::move(library)) {
    create_.number(static_cast<uint8_t>(SessionRequest::kReward)).text(name).settings(settings);
  }

  Result<Score> score(const std::string& evidence, Time budget) const override {
    Packer request;
    request.number(static_cast<uint8_t>(SessionRequest::kScore)).text(evidence);
    const auto said = ask(request.number<int64_t>(budget.count()), budget, "score()");
    if (!said) return said.failure();
    Unpacker answer(said.value());
    Score score{.reward = answer.number<double>(), .metrics = {}};
    score.metrics = sandbox::unpack_metrics(answer);
    if (answer.whole()) return score;
    return Failure{"its process answers score() with what is no score"};
  }

  Result<void> check_row(const std::string& row, Time budget) const override {
    Packer request;
    request.number(static_cast<uint8_t>(SessionRequest::kCheckRow)).text(row);
    const auto said = ask(request, budget, "check_row()");
    if (!said) return said.failure();
    return {};
  }

 private:
  Result<std::unique_ptr<HostedSession>> make(Time timeout) const {
    auto session = library_->hosted()->open();
    if (const auto made = session->call(create_, timeout, "create()"); !made) return made.failure();
    return session;
  }

  // By a process that nobody else asks meanwhile. It is kept for the next score while it lives.
  Result<std::string> ask(const Packer& request, Time timeout, const char* call) const {
    std::unique_ptr<HostedSession> session;
    {
      MutexLock lock(mutex_);
      while (!idle_.empty() && (session == nullptr || !session->is_alive())) {
        session = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (session == nullptr || !session->is_alive()) {
      auto made = make(timeout);
      if (!made) return made.failure();
      session = std::move(made).value();
    }
    Result<std::string> said = session->call(request, timeout, call);
    if (!session->is_alive()) return said;
    MutexLock lock(mutex_);
    idle_.push_back(std::move(session));
    return said;
  }

  const std::shared_ptr<UsedLibrary> library_;
  Packer create_;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<HostedSession>> idle_ TR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Verifier> make_hosted_verifier(std::shared_ptr<UsedLibrary> library,
                                               const std::string& name,
                                               const sandbox::EnvironmentSettings& settings) {
  return std::make_unique<HostedVerifier>(std::move(library), name, settings);
}

}  // namespace tailrace
