#include "sandbox/plugin/hosted_environment.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sandbox/plugin/plugin_environment.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {
namespace {

Packer ask(SessionRequest kind) {
  Packer request;
  request.number(static_cast<uint8_t>(kind));
  return request;
}

Packer creation(SessionRequest kind, const std::string& name, const EnvironmentSettings& settings) {
  Packer request = ask(kind);
  request.text(name).settings(settings);
  return request;
}

struct Asked {
  Packer request;
  const char* name;  // for messages
};

Asked asked(const EnvironmentCall& call) {
  switch (call.kind) {
    case EnvironmentCall::Kind::kReset: {
      Packer request = ask(SessionRequest::kReset);
      request.number(call.task.seed).text(call.task.data);
      return {std::move(request), "reset()"};
    }
    case EnvironmentCall::Kind::kStep: {
      Packer request = ask(SessionRequest::kStep);
      request.text(call.action);
      return {std::move(request), "step()"};
    }
    case EnvironmentCall::Kind::kCut:
      break;
  }
  return {ask(SessionRequest::kCut), "cut()"};
}

Result<StepResult> step_of(const Result<std::string>& said, const char* call) {
  if (!said) return said.failure();
  Unpacker answer(said.value());
  StepResult result = unpack_step(answer);
  if (answer.whole()) return result;
  return Failure{fmt::format("its process answers {} with what is no answer", call)};
}

class HostedEnvironment final : public LibraryEnvironment {
 public:
  HostedEnvironment(std::shared_ptr<const HostedLibrary> library, EnvironmentInfo info,
                    const EnvironmentSettings& settings, Time timeout)
      : library_(std::move(library)),
        timeout_(timeout),
        create_(creation(SessionRequest::kEnvironment, info.name, settings)),
        info_(std::move(info)) {}

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    if (auto made = make(); !made) return made.failure();
    auto first = step({.kind = EnvironmentCall::Kind::kReset, .task = task});
    if (!first) return first.failure();
    return std::move(first).value().observation;
  }
  Result<StepResult> step(const std::string& action) override {
    return step({.kind = EnvironmentCall::Kind::kStep, .action = action});
  }
  Result<StepResult> cut() override { return step({.kind = EnvironmentCall::Kind::kCut}); }
  void close() override {
    if (session_) (void)session_->call(ask(SessionRequest::kClose), timeout_, "close()");
    session_.reset();
  }
  std::optional<std::string> demonstrate(uint64_t random) override {
    return text_of(SessionRequest::kDemonstrate, random, "demonstrate()");
  }
  std::string sample_action(uint64_t random) override {
    return text_of(SessionRequest::kSampleAction, random, "sample_action()").value_or("");
  }

 private:
  // A process that was never used, for each episode.
  Result<void> make() {
    session_ = library_->open();
    const auto made = session_->call(create_, timeout_, "create()");
    if (!made) return made.failure();
    return {};
  }

  Result<StepResult> step(const EnvironmentCall& call) {
    const Asked what = asked(call);
    if (!session_) return Failure{fmt::format("a call out of order: {} before reset()", what.name)};
    return step_of(session_->call(what.request, timeout_, what.name), what.name);
  }

  std::optional<std::string> text_of(SessionRequest kind, uint64_t random, const char* call) {
    Packer request = ask(kind);
    request.number(random);
    if (!session_ && !make()) return std::nullopt;
    auto said = session_->call(request, timeout_, call);
    if (!said) return std::nullopt;
    Unpacker answer(said.value());
    const bool is_offered = answer.number<bool>();
    std::string text = answer.text();
    if (!is_offered || !answer.whole()) return std::nullopt;
    return text;
  }

  const std::shared_ptr<const HostedLibrary> library_;
  const Time timeout_;
  const Packer create_;
  const EnvironmentInfo info_;
  std::unique_ptr<HostedSession> session_;
};

class HostedRemote final : public RemoteEnvironment {
 public:
  HostedRemote(const HostedLibrary& library, const std::string& name,
               const EnvironmentSettings& settings, Time timeout)
      : create_(creation(SessionRequest::kEnvironment, name, settings)),
        timeout_(timeout),
        session_(library.open(HostedSession::Calls::kBegun)) {}
  ~HostedRemote() override { session_->close(ask(SessionRequest::kClose), timeout_); }

  void begin(const EnvironmentCall& call, Done done) override {
    auto play = [session = session_, what = asked(call), timeout = timeout_](const Done& answer) {
      session->begin(what.request, timeout, what.name,
                     [answer, name = what.name](const Result<std::string>& said) {
                       answer(step_of(said, name));
                     });
    };
    if (call.kind != EnvironmentCall::Kind::kReset) return play(done);
    session_->begin(create_, timeout_, "create()",
                    [play = std::move(play), done](const Result<std::string>& made) {
                      if (!made) return done(made.failure());
                      play(done);
                    });
  }

 private:
  const Packer create_;
  const Time timeout_;
  const std::shared_ptr<HostedSession> session_;  // a call's too
};

// Its process says the owner too.
UserError refused(const EnvironmentSettings& settings, const std::string& owner,
                  std::string_view section, const Failure& failure) {
  std::string_view reason = failure.message;
  if (reason.starts_with(owner + ": ")) reason.remove_prefix(owner.size() + 2);
  return refused_settings(settings, owner, section, reason);
}

}  // namespace

EnvironmentInfo ask_info(const HostedLibrary& library, const std::string& name,
                         const EnvironmentSettings& settings, Time timeout) {
  const auto said = library.open()->call(creation(SessionRequest::kEnvironment, name, settings),
                                         timeout, "create()");
  if (!said) throw refused(settings, "environment " + name, "env.settings", said.failure());
  Unpacker answer(said.value());
  EnvironmentInfo info = unpack_info(answer);
  if (!answer.whole()) throw UserError("environment {}: it says what nobody reads", name);
  return info;
}

void prove_reward(const HostedLibrary& library, const std::string& name,
                  const EnvironmentSettings& settings, Time timeout) {
  const auto said =
      library.open()->call(creation(SessionRequest::kReward, name, settings), timeout, "create()");
  if (!said) throw refused(settings, "reward " + name, "reward.settings", said.failure());
}

std::unique_ptr<Environment> make_hosted_environment(std::shared_ptr<const HostedLibrary> library,
                                                     EnvironmentInfo info,
                                                     const EnvironmentSettings& settings,
                                                     Time timeout) {
  return std::make_unique<HostedEnvironment>(std::move(library), std::move(info), settings,
                                             timeout);
}

std::unique_ptr<RemoteEnvironment> make_remote_environment(
    std::shared_ptr<const HostedLibrary> library, const std::string& name,
    const EnvironmentSettings& settings, Time timeout) {
  return std::make_unique<HostedRemote>(*library, name, settings, timeout);
}

}  // namespace tailrace::sandbox
