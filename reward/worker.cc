#include "reward/worker.h"

#include <cmath>
#include <exception>
#include <map>

#include <unistd.h>

#include "core/base/deadline_executor.h"

namespace tailrace {

namespace {

using namespace std::chrono_literals;

// Waits are cut into pieces of this, so that a stop, and while verifiers work a new request, is
// noticed.
constexpr std::chrono::milliseconds kPoll = 100ms;
constexpr std::chrono::milliseconds kScorePoll = 5ms;

Verdict unscored(const Verify& request, std::string failure) {
  return {.lease = request.lease,
          .lane = request.lane,
          .verify_attempt = request.verify_attempt,
          .reward = std::nullopt,
          .metrics = {},
          .failure = std::move(failure)};
}

}  // namespace

Verdict judge(const VerifierRegistry& verifiers, const Verify& request) {
  const Verifier* verifier = verifiers.find(request.verifier);
  if (verifier == nullptr) {
    std::vector<std::string> names;
    for (const auto& [name, help] : verifiers.list()) names.push_back(name);
    return unscored(request, fmt::format("there is no verifier '{}'; verifiers: {}",
                                         request.verifier, fmt::join(names, ", ")));
  }
  Result<Score> score = Failure{"not scored"};
  try {
    score = verifier->score(request.evidence);
  } catch (const std::exception& e) {
    score = Failure{e.what()};
  }
  if (!score) {
    return unscored(request,
                    fmt::format("verifier {}: {}", request.verifier, score.failure().message));
  }
  if (!std::isfinite(score.value().reward)) {
    return unscored(request,
                    fmt::format("verifier {}: its reward is not finite", request.verifier));
  }
  Verdict verdict = unscored(request, "");
  verdict.reward = score.value().reward;
  verdict.metrics = score.value().metrics;
  return verdict;
}

RewardWorker::RewardWorker(std::shared_ptr<const VerifierRegistry> verifiers, const Clock& clock,
                           RewardWorkerOptions options)
    : verifiers_(std::move(verifiers)), clock_(clock), options_(std::move(options)) {}

RewardWorker::Ending RewardWorker::run() {
  Hello hello{.role = Role::kReward,
              .worker = options_.worker,
              .incarnation = 0,
              .pid = static_cast<int32_t>(getpid()),
              .slots = options_.threads,
              .numerics_class = ""};
  WorkerClient client(hello, options_.endpoint, options_.link);
  DeadlineExecutor<Verdict> executor("it", options_.threads, options_.deadline, clock_);
  std::map<int64_t, Verify> in_hand;
  int64_t next_id = 0;
  while (!stop_) {
    std::vector<DeadlineExecutor<Verdict>::Call> calls;
    while (auto message = client.receive(in_hand.empty() ? kPoll : 0ms)) {
      if (auto* request = std::get_if<Verify>(&*message)) {
        calls.push_back({.id = next_id, .run = [verifiers = verifiers_, request = *request] {
                           return judge(*verifiers, request);
                         }});
        in_hand.emplace(next_id++, std::move(*request));
      }
      // The scheduler knows nothing of what we do: nobody waits for it.
      if (std::holds_alternative<Welcome>(*message)) {
        calls.clear();
        in_hand.clear();
      }
      if (const auto* shutdown = std::get_if<Shutdown>(&*message))
        return {"shutdown: " + shutdown->reason};
    }
    executor.hand_over(std::move(calls));
    auto wait = in_hand.empty() ? 0ms : kScorePoll;
    for (auto& answer : executor.collect(wait, /*all=*/false)) {
      auto request = in_hand.find(answer.id);
      if (request == in_hand.end()) continue;
      client.send(answer.result ? std::move(answer.result).value()
                                : unscored(request->second,
                                           fmt::format("verifier {}: {}", request->second.verifier,
                                                       answer.result.failure().message)));
      in_hand.erase(request);
    }
    if (client.silence() > options_.patience) {
      return {.reason = fmt::format("the scheduler has been silent for {} s",
                                    client.silence().count() / 1000),
              .clean = false};
    }
  }
  return {"stopped"};
}

}  // namespace tailrace
